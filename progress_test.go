package main

import (
	"os"
	"strings"
	"testing"
)

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

// TestAnswerThatDoesNotArrive: a command whose output cannot be written does not end
// as if it could.
func TestAnswerThatDoesNotArrive(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	s := newSite(t, t.TempDir())
	s.ok(t, "run")
	for _, args := range [][]string{{"version"}, {"check"}, {"stat"}, {"stat", "--json"}, {"generations"}, {"run", "--help"}} {
		cmd := s.command(t.Context(), nil, args...)
		cmd.Stdout = full
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != 28 || !strings.Contains(said.String(), "write /dev/stdout: no space left on device") {
			t.Errorf("%v: %v\n%s", args, err, said.String())
		}
	}
}
