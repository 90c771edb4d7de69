package bench

// Scenarios returns all scenarios, in the order in which people are shown them.
func Scenarios() []Scenario {
	return []Scenario{
		publishScenario(),
		fanoutScenario(),
		sseScenario(),
		latencyScenario(),
		idleScenario(),
		replayScenario(),
		stormScenario(),
		slowScenario(),
	}
}
