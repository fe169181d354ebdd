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
