package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// cautions are what the plan of a configuration is warned of, by stat and plan.
func cautions(t *testing.T, config string) (out []string) {
	t.Helper()
	var notes [2][]string
	for i, args := range [][]string{{"stat"}, {"plan"}} {
		var doc struct{ Notes []string }
		must(t, json.Unmarshal([]byte(eagle(t, append(args, "--json", "-q", "-c", config)...).want(t, 0).out), &doc))
		for _, n := range doc.Notes {
			if strings.HasPrefix(n, "caution:") {
				notes[i] = append(notes[i], n)
			}
		}
		text := strings.Join(strings.Fields(eagle(t, append(args, "-q", "-c", config)...).want(t, 0).out), " ")
		for _, n := range notes[i] {
			if !strings.Contains(text, n) {
				t.Errorf("%s does not show %q:\n%s", args[0], n, text)
			}
		}
		if len(notes[i]) == 0 && strings.Contains(text, "caution") {
			t.Errorf("%s --json does not have what its text says:\n%s", args[0], text)
		}
	}
	if !slices.Equal(notes[0], notes[1]) {
		t.Errorf("stat says %q, plan %q", notes[0], notes[1])
	}
	return notes[0]
}

// TestCapThatLeavesLittle: a cap that leaves out more than half of the samples is
// named with numbers and the way out, wherever the plan is shown; one that leaves
// more, or what is left out by name, is not.
func TestCapThatLeavesLittle(t *testing.T) {
	for _, c := range []struct {
		plan string
		want []string
	}{
		{"max_tokens: 12", []string{"the cap of 12 tokens leaves out ", " of 363 samples", "emptied: what is supervised in them lies behind it", "raise plan.max_tokens", "plan.overlong to split"}},
		{"max_tokens: 30, overlong: skip", []string{"the cap of 30 tokens leaves out ", " of 363 samples", "over length", "raise plan.max_tokens", "to truncate, which keeps their beginning, or to split"}},
		{"max_tokens: 12, overlong: split", nil},
		{"max_tokens: 300", nil},
		{"max_tokens: 300, overlong: skip", nil},
		{"drop: [A_chat, B_code]", nil},
	} {
		t.Run(c.plan, func(t *testing.T) {
			config, _ := quickstart(t)
			edit(t, config, "max_tokens: 384", c.plan)
			edit(t, config, "backend: native", "backend: synthetic")
			eagle(t, "merge", "-q", "-c", config).want(t, 0)
			eagle(t, "shuffle", "-q", "-c", config).want(t, 0)
			eagle(t, "plan", "-q", "-c", config).want(t, 0)
			got := cautions(t, config)
			if len(c.want) == 0 {
				if len(got) > 0 {
					t.Errorf("warned of %q", got)
				}
				return
			}
			if len(got) != 1 {
				t.Fatalf("warned of %q", got)
			}
			for _, w := range c.want {
				if !strings.Contains(got[0], w) {
					t.Errorf("%q does not say %q", got[0], w)
				}
			}
			eagle(t, "run", "-c", config).want(t, 0).says(t, got[0])
		})
	}
}
