package model

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestHeadOfSizesAlone: a directory of config.json alone is a model without
// weights, whatever else its configuration lacks.
func TestHeadOfSizesAlone(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"model_type":"x","hidden_size":2,"num_hidden_layers":1,"vocab_size":3}`)
	if h, err := OpenHead(dir); !errors.Is(err, ErrNoWeights) {
		t.Errorf("%v, %v: want ErrNoWeights", h, err)
	}
}

// TestEpsilonNotGiven: without rms_norm_eps a model type has the one that
// transformers takes, and one that is not known is refused by name.
func TestEpsilonNotGiven(t *testing.T) {
	for kind, want := range map[string]float64{"llama": 1e-6, "mixtral": 1e-5, "deepseek_v3": 1e-6, "gpt_neox": 0} {
		for _, nested := range []bool{false, true} {
			dir := tiny(t, "false")
			c, key := `"model_type":"`+kind+`","hidden_size":2,"num_hidden_layers":1,"vocab_size":3`, " rms_norm_eps "
			if nested {
				c, key = `"model_type":"y","text_config":{`+c+`}`, " text_config.rms_norm_eps "
			}
			write(t, filepath.Join(dir, "config.json"), `{`+c+`}`)
			h, err := OpenHead(dir)
			switch {
			case want == 0:
				if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), kind) {
					t.Errorf("%s, nested %v: %v does not name %q", kind, nested, err, key)
				}
				continue
			case err != nil:
				t.Errorf("%s, nested %v: %v", kind, nested, err)
				continue
			case h.eps != want:
				t.Errorf("%s: %g, want %g", kind, h.eps, want)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestSizesAreNamed: what a configuration lacks is named by its key, where it is
// looked for.
func TestSizesAreNamed(t *testing.T) {
	for want, c := range map[string]string{
		" vocab_size is missing":              `{"hidden_size":2,"num_hidden_layers":1}`,
		" text_config.hidden_size is missing": `{"vocab_size":3,"hidden_size":2,"text_config":{"vocab_size":3,"num_hidden_layers":1}}`,
		" llm_config.vocab_size is 0":         `{"llm_config":{"hidden_size":2,"num_hidden_layers":1,"vocab_size":0}}`,
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "config.json"), c)
		if _, err := ReadConfig(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one that says %q", err, want)
		}
	}
	for _, key := range []string{"num_attention_heads", "intermediate_size"} {
		if _, err := respec(t, map[string]string{key: "null"}); err == nil || !strings.Contains(err.Error(), key+" is missing") {
			t.Errorf("%v does not name %s", err, key)
		}
	}
	g := newGGUFToy()
	delete(g.kv, "llama.feed_forward_length")
	if _, err := ReadSpec(g.write(t)); err == nil || !strings.Contains(err.Error(), "llama.feed_forward_length is missing") {
		t.Errorf("%v", err)
	}
}
