package config

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string, over ...Override) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "eaglebatch.yaml")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	return Load(path, over)
}

func TestLoad(t *testing.T) {
	c, err := load(t, `
work: ./w
datasets:
  - {name: A, path: a.jsonl}
  - {name: B, path: [b/*.jsonl, /abs.jsonl], weight: 0, eval: 3}
model: m
merge: {max_rejects: 2%}
plan: {layers: [1, 3], max_tokens: 8192, reserve: 10GiB}
gc: {min_age: 36h}
extract: {memory: 1GiB, endpoints: http://a}
`, Override{Key: "plan.max_tokens", Value: "4096", From: "--max-tokens"})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(c.File)
	if c.Work != filepath.Join(dir, "w") || c.Model != filepath.Join(dir, "m") || c.Datasets[1].Path[1] != "/abs.jsonl" {
		t.Errorf("paths %q %q %q", c.Work, c.Model, c.Datasets[1].Path)
	}
	if c.Datasets[0].Weight != 1 || c.Datasets[1].Weight != 0 || c.Plan.MaxTokens != 4096 || c.GC.MinAge != 36*time.Hour {
		t.Errorf("%+v", c)
	}
	if c.Extract.Codec != "lz4-planes" || c.Merge.Dedup != "content" || c.Shuffle.Seed != 42 || !slices.Equal(c.Extract.Endpoints, []string{"http://a"}) {
		t.Errorf("defaults %+v", c)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, yaml, says string }{
		{"unknown key", "plan: {max_token: 1}", `:1: unknown key "max_token" in plan: did you mean "max_tokens"`},
		{"given twice", "work: a\nwork: b", "work is given twice, first on line 1"},
		{"not a number", "plan: {max_tokens: many}", `plan.max_tokens: "many" is not a whole number`},
		{"not a size", "extract: {memory: lots}", "is not a size"},
		{"not a duration", "gc: {min_age: 3}", "is not a duration"},
		{"list for a value", "work: [a]", "want a single value"},
		{"two datasets of one name", "datasets: [{name: A, path: a}, {name: A, path: b}]", "given twice"},
		{"name that is a path", "datasets: [{name: ../x, path: a}]", "want letters"},
		{"drop of nothing", "datasets: [{name: A1, path: a}]\nplan: {drop: [A2]}", `did you mean "A1"`},
		{"dtype", "plan: {dtype: int4}", "want one of bf16"},
		{"no yaml", "a: [", "did not find"},
		{"part of a token", "plan: {max_tokens: 1.5}", `plan.max_tokens: "1.5" is not a whole number`},
		{"part of a generation", "gc: {keep: 0.5}", "is not a whole number"},
		{"part of a seed", "shuffle: {seed: 1.5}", "is not a whole number of 0 or more"},
		{"part of a layer", "plan: {layers: [1, 2.5]}", "want auto or a list"},
		{"no number", "extract: {min_top1: .nan}", "is not a number"},
		{"no end", "plan: {tokens_per_second: .inf}", "is not a number"},
		{"negative rate", "plan: {tokens_per_second: -1}", "plan.tokens_per_second: -1 is negative"},
		{"negative threads", "extract: {threads: -1}", "extract.threads: -1 is negative"},
		{"share without its sign", "plan: {reserve: 0.05}", "write a share with a percent sign"},
		{"size without its unit", "plan: {blob_size: 1.5}", "give a unit"},
		{"rows", "plan: {rows: some}", "want one of all, last-supervised"},
		{"weight", "datasets: [{name: A, path: a, weight: 1e7}]", "is not between 0 and a million"},
		{"path of nothing", "datasets: [{name: A, path: [a, null]}]", "no path"},
		{"work of nothing", `work: ""`, "work: no directory"},
		{"second document", "work: w\n---\nplan: {max_tokens: 3}", "line 2: a second document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, c.yaml)
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
	for _, key := range []string{"plan.sead", "work.x", "plan.layers.", "", "datasets.0", "plan.reserve.Fraction"} {
		if _, err := load(t, "work: w", Override{Key: key, Value: "1", From: "--set " + key}); err == nil || !strings.Contains(err.Error(), "--set "+key+": unknown key") {
			t.Errorf("override of %q: %v", key, err)
		}
	}
	for _, empty := range []string{"", "# nothing\n"} {
		if _, err := load(t, empty); err != nil {
			t.Errorf("%q: %v", empty, err)
		}
	}
	if c, err := load(t, "plan: {max_tokens: 1e3}\nshuffle: {seed: 18446744073709551615}"); err != nil || c.Plan.MaxTokens != 1000 || c.Shuffle.Seed != math.MaxUint64 {
		t.Errorf("whole numbers: %+v, %v", c, err)
	}
}

// TestPlanText: a recorded decision lapses when the plan section means something
// else, not when it is commented or laid out anew.
func TestPlanText(t *testing.T) {
	text := func(yaml string) string {
		t.Helper()
		c, err := load(t, yaml)
		if err != nil {
			t.Fatal(err)
		}
		return c.PlanText
	}
	want := text("plan: {max_tokens: 10, dtype: fp16}\n")
	for _, same := range []string{
		"plan:\n  max_tokens: 10\n  dtype: fp16\n", "# why\nplan: # this\n  # and that\n  max_tokens: 10 # ten\n  dtype: 'fp16'\nshuffle: {seed: 3}\n",
	} {
		if got := text(same); got != want {
			t.Errorf("%q: %q, want %q", same, got, want)
		}
	}
	for _, other := range []string{"plan: {max_tokens: 11, dtype: fp16}", "plan: {max_tokens: 10}", "plan:", "{}"} {
		if text(other) == want {
			t.Errorf("%q is taken for the same", other)
		}
	}
}

func TestLayers(t *testing.T) {
	for n, want := range map[int][]int{61: {2, 30, 58, 61}, 32: {2, 16, 29, 32}, 8: {2, 4, 5, 8}, 4: {1, 2, 4}, 1: {0, 1}} {
		if got, err := (Layers{Auto: true}).For(n); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d layers: %v, %v; want %v", n, got, err, want)
		}
	}
	for _, bad := range [][]int{{3, 2}, {2, 2}, {-1}, {9}} {
		if got, err := (Layers{IDs: bad}).For(8); err == nil {
			t.Errorf("%v: %v, want an error", bad, got)
		}
	}
}
