package model

import (
	"testing"

	"eaglebatch/fixtures"
)

// TestOpenHeadTied: a model without an lm_head of its own uses its embeddings.
func TestOpenHeadTied(t *testing.T) {
	for _, name := range []string{"models/llama-tied-llama3", "models/qwen2"} {
		dir, err := fixtures.Copy(t.TempDir(), name)
		if err != nil {
			t.Fatal(err)
		}
		h, err := OpenHead(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if h.Vocab() == 0 || h.lm.Name != h.embed.Name {
			t.Errorf("%s: lm_head is %q, embeddings %q", name, h.lm.Name, h.embed.Name)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
