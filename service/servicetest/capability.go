package servicetest

import "slices"

// Capability is something that tests of the service need and that not every
// store has. docs/stores.md lists them for users; a test compares that list with
// this file.
type Capability string

// Capabilities of stores.
const (
	// Replicas: several replicas serve one database at the same time.
	Replicas Capability = "Replicas"
	// SQL: applications publish and close streams in transactions of their own.
	SQL Capability = "SQL"
	// Notifications: announcements travel through the database, where other
	// sessions see them and send their own.
	Notifications Capability = "Notifications"
	// Outages: the database can be out of reach while replicas run, and they go on
	// by themselves.
	Outages Capability = "Outages"
	// File: the database is one file, which is copied while a replica uses it.
	File Capability = "File"
)

// Needs are the capabilities that a test cannot do without.
type Needs []Capability

// Store is a kind of store.
type Store struct {
	// Kind names it, as the subtests of OnEachStore.
	Kind         string
	Capabilities []Capability
}

// Kinds of stores.
const (
	PostgreSQL = "postgresql"
	SQLite     = "sqlite"
)

// Stores are all kinds of stores.
var Stores = []Store{
	{PostgreSQL, []Capability{Replicas, SQL, Notifications, Outages}},
	{SQLite, []Capability{File}},
}

// has reports whether the store has every capability of needs.
func (s Store) has(needs ...Capability) bool {
	for _, need := range needs {
		if !slices.Contains(s.Capabilities, need) {
			return false
		}
	}
	return true
}
