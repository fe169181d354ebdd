package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRedoMergeNeedsSources: what is merged is not given up for sources that
// are gone.
func TestRedoMergeNeedsSources(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "merge", "-q", "-c", config).want(t, 0)
	src := filepath.Join(filepath.Dir(config), "data", "A_chat", "tokenized_data.jsonl")
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config, "--redo", "merge").want(t, 1).says(t, "A_chat", "no files there", "what is merged is kept")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
}

// TestLostBlobIsComputedAnew: a new order over a generation that has lost a
// blob points to what is left of it.
func TestLostBlobIsComputedAnew(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	if err := os.Remove(filepath.Join(work, "generations", "000002", "blob-000003.ebb")); err != nil {
		t.Fatal(err)
	}
	eagle(t, "check", "-q", "-c", config).want(t, 12)
	eagle(t, "run", "-c", config, "--backend", "synthetic", "--seed", "7", "--redo", "shuffle").want(t, 0).says(t, "blob-000003.ebb", "computed anew")
	s := statOf(t, config)
	if s.Plan.NewSamples == 0 || s.Plan.Reused == 0 {
		t.Errorf("%d new and %d reused", s.Plan.NewSamples, s.Plan.Reused)
	}
	eagle(t, "check", "--full", "-q", "-c", config, "3").want(t, 0)
	eagle(t, "compare", "-q", "-c", config, "3", "3").want(t, 0)
}
