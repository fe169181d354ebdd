package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"eaglebatch/internal/human"
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

// TestBuildingIsCounted: stat, generations and gc show what a generation that is
// being built has so far.
func TestBuildingIsCounted(t *testing.T) {
	config, _ := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic", "--limit", "100").want(t, 5)
	s := statOf(t, config)
	g := s.Generations[len(s.Generations)-1]
	if g.State != "building" || g.Samples < 100 || g.Samples >= s.Plan.Samples || g.Samples < s.Extract.SamplesDone || g.Tokens < g.Samples || g.Bytes == 0 || g.Blobs == 0 {
		t.Errorf("%+v, extract %+v", g, s.Extract)
	}
	row := fmt.Sprintf(`building .* %d  .*%s.* %d`, g.Samples, regexp.QuoteMeta(human.Count(g.Tokens)), g.Blobs)
	for _, cmd := range []string{"stat", "generations"} {
		if out := eagle(t, cmd, "-c", config).want(t, 0).out; !regexp.MustCompile(row).MatchString(out) {
			t.Errorf("%s does not say %q:\n%s", cmd, row, out)
		}
	}
	var swept struct {
		Plan struct {
			Items []struct {
				Generation struct {
					ID              uint32
					Samples, Tokens int64
				}
			}
		}
	}
	must(t, json.Unmarshal([]byte(eagle(t, "gc", "--json", "-q", "-c", config).want(t, 0).out), &swept))
	found := false
	for _, it := range swept.Plan.Items {
		if x := it.Generation; x.ID == g.ID {
			found = true
			if x.Samples != g.Samples || x.Tokens != g.Tokens {
				t.Errorf("gc: %+v, stat %+v", x, g)
			}
		}
	}
	if !found {
		t.Errorf("gc does not list it: %+v", swept)
	}
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	s = statOf(t, config)
	if g := s.Generations[len(s.Generations)-1]; g.State != "sealed" || g.Samples != s.Plan.Samples {
		t.Errorf("%+v", g)
	}
}
