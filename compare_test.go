package main

import (
	"encoding/json"
	"testing"
)

// TestCompare compares generations that are equal, rounded, of other values,
// and half built.
func TestCompare(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--dtype", "bf16").want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--backend", "synthetic").want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--layers", "[2, 8]", "--limit", "50").want(t, 5)
	type doc struct {
		Verdict               string
		Matched, Absent, Rows int64
		OnlyA                 int64 `json:"only_in_a"`
		IDsDiffer, MaskDiffer int64
		Layers                []struct{ Layer int }
	}
	for _, c := range []struct {
		name, a, b, verdict string
		layers              int
		building            bool
	}{
		{"itself", "2", "2", "identical", 4, false},
		{"rounded to bf16", "2", "3", "close", 4, false},
		{"made-up values", "2", "4", "different", 4, false},
		{"half built", "2", "5", "identical", 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := eagle(t, "compare", c.a, c.b, "--json", "-q", "-c", config).want(t, 0)
			var d doc
			if err := json.Unmarshal([]byte(r.out), &d); err != nil {
				t.Fatal(err)
			}
			if d.Verdict != c.verdict || len(d.Layers) != c.layers {
				t.Errorf("%+v, want %s", d, c.verdict)
			}
			if d.Matched+d.Absent+d.OnlyA != 363 || d.Matched == 0 || c.building != (d.Absent > 0) {
				t.Errorf("%d matched, %d absent and %d only in a of 363", d.Matched, d.Absent, d.OnlyA)
			}
		})
	}
}
