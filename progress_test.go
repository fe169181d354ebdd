package main

import "testing"

// TestProgressOfPhases: every phase that does something says which it is of how
// many, and how far it is.
func TestProgressOfPhases(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "run", "-c", config, "--backend", "synthetic").want(t, 0).says(t,
		"[1/5] merge  0 B / ", "[1/5] merge", "  100.0%  done in",
		"[2/5] shuffle  363 / 363 samples  100.0%  done in",
		"[3/5] plan  363 / 363 samples  100.0%  done in",
		"[5/5] extract  0 / ")
}
