// Package servicetest runs replicas in process for tests and checks Fanfare's
// guarantees over what was recorded of a run.
//
// A test is defined once and runs on each kind of store ([OnEachStore]), unless
// it needs a [Capability] that a store has not. It starts replicas ([Start]),
// publishes through a [Recorder], lets [Follower]s subscribe and resume, and gives
// the recorded [Run] to [Check]. Each guarantee is one of [Checks]: a definition
// in one sentence and a validator. A run is complete when every stream got a last
// frame after all others and every follower saw it; the order within a stream
// then proves that what has not arrived never will.
//
// The package is for tests only.
package servicetest
