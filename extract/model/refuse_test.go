package model

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"eaglebatch/extract/model/tensor"
)

// respec reads the configuration of toy with keys set or, where the value is
// empty, removed.
func respec(t *testing.T, keys map[string]string) (Spec, error) {
	t.Helper()
	all := map[string]string{
		"architectures": `["LlamaForCausalLM"]`, "model_type": `"llama"`, "hidden_size": "8", "num_hidden_layers": "1", "vocab_size": "3",
		"num_attention_heads": "2", "num_key_value_heads": "1", "intermediate_size": "4", "max_position_embeddings": "16",
	}
	maps.Copy(all, keys)
	var list []string
	for k, v := range all {
		if v != "" {
			list = append(list, fmt.Sprintf("%q:%s", k, v))
		}
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), "{"+strings.Join(list, ",")+"}")
	return ReadSpec(dir)
}

// TestSpecRefuses: what transformers computes otherwise than this engine.
func TestSpecRefuses(t *testing.T) {
	mistral := map[string]string{"architectures": `["MistralForCausalLM"]`, "model_type": `"mistral"`}
	tests := []struct {
		name, key, value, want string
		base                   map[string]string
	}{
		{name: "not causal", key: "is_causal", value: "false", want: "is_causal false"},
		{name: "not causal, as a number", key: "is_causal", value: "0", want: "is_causal 0"},
		{name: "nested", key: "llm_config", value: `{"hidden_size":8,"num_hidden_layers":1,"vocab_size":3}`, want: "llm_config"},
		{name: "no architecture", key: "architectures", want: "LlamaForCausalLM"},
		{name: "two rotations", key: "rope_parameters", value: `{"rope_type":"default"}`, want: "rope_scaling and rope_parameters differ",
			base: map[string]string{"rope_scaling": `{"type":"linear","factor":2}`}},
		{name: "yarn without attention", key: "rope_scaling", value: `{"rope_type":"yarn","factor":2,"attention_factor":0}`, want: "attention_factor 0"},
		{name: "theta", key: "rope_theta", value: "-1", want: "rope_theta -1"},
		{name: "empty window", key: "sliding_window", value: "0", want: "sliding_window 0", base: mistral},
		{name: "negative window", key: "sliding_window", value: "-1", want: "sliding_window -1", base: mistral},
	}
	for _, tc := range tests {
		keys := map[string]string{tc.key: tc.value}
		maps.Copy(keys, tc.base)
		if _, err := respec(t, keys); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that names %q", tc.name, err, tc.want)
		}
	}
	same := `{"rope_type":"linear","factor":2}`
	if _, err := respec(t, map[string]string{"rope_scaling": same, "rope_parameters": same, "is_causal": "true", "text_config": "null"}); err != nil {
		t.Errorf("options that say what is so anyway: %v", err)
	}
}

// TestMistralWindow: a missing key is the default of transformers, null is no
// window.
func TestMistralWindow(t *testing.T) {
	for value, want := range map[string]int{"": 4096, "null": 0, "7": 7} {
		s, err := respec(t, map[string]string{"architectures": `["MistralForCausalLM"]`, "model_type": `"mistral"`, "sliding_window": value})
		if err != nil || !slices.Equal(s.Windows, []int{want}) {
			t.Errorf("%q: windows %v, want %d (%v)", value, s.Windows, want, err)
		}
	}
	if s, err := respec(t, map[string]string{"sliding_window": "7"}); err != nil || s.Windows[0] != 0 {
		t.Errorf("llama: windows %v, %v", s.Windows, err)
	}
}

// TestLayerTensors: what lies in a layer and has no place there is refused.
func TestLayerTensors(t *testing.T) {
	for part, ok := range map[string]bool{
		"0.self_attn.q_proj.lora_A.weight":          false,
		"0.post_feedforward_layernorm.weight":       false,
		"0.self_attn.rotary_emb.inv_freq":           true,
		"1.self_attn.q_proj.weight":                 true, // of a layer that is not computed
		"0.mlp.experts.0.gate_proj.weight":          false,
		"0.block_sparse_moe.gate.weight":            false,
		"0.self_attn.q_proj.weight_scale_inv":       false,
		"0.self_attn.attn_sinks":                    false,
		"0.self_attn.q_proj.parametrizations.w.old": false,
	} {
		name := "model.layers." + part
		d, err := OpenDecoder(toy(t, "", func(m map[string]tensor.Tensor) { m[name] = f32(name, []int{2}, 1, 2) }))
		if err == nil {
			err = d.Close()
		}
		if ok && err != nil || !ok && (!errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestShardsRefuse: weights of which engines would take different ones, and
// files that are not what they should be, each by its own reason.
func TestShardsRefuse(t *testing.T) {
	const embed, norm = "model.embed_tokens.weight", "model.norm.weight"
	index := fmt.Sprintf(`{"weight_map":{%q:"a.safetensors",%q:"b.safetensors"}}`, embed, norm)
	a, b := f32(embed, []int{3, 8}, make([]float32, 24)...), f32(norm, []int{8}, make([]float32, 8)...)
	for name, tc := range map[string]struct {
		lay  func(dir string)
		want []string
	}{
		"one file beside an index": {func(dir string) { writeTensors(t, filepath.Join(dir, singleName), a, b) }, []string{singleName, indexName, "remove"}},
		"a tensor twice":           {func(dir string) { writeTensors(t, filepath.Join(dir, "a.safetensors"), a, b) }, []string{norm, "b.safetensors"}},
		"no such shard": {func(dir string) {
			if err := os.Remove(filepath.Join(dir, "a.safetensors")); err != nil {
				t.Fatal(err)
			}
		}, []string{"a.safetensors", ErrNoWeights.Error()}},
		"cut": {func(dir string) {
			if err := os.Truncate(filepath.Join(dir, "a.safetensors"), 100); err != nil {
				t.Fatal(err)
			}
		}, []string{"a.safetensors"}},
		"a tensor that the index misplaces": {func(dir string) { writeTensors(t, filepath.Join(dir, "a.safetensors"), f32("x", []int{1}, 1)) }, []string{embed, "index"}},
	} {
		dir := toy(t, "", nil)
		if err := os.Remove(filepath.Join(dir, singleName)); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, indexName), index)
		writeTensors(t, filepath.Join(dir, "a.safetensors"), a)
		writeTensors(t, filepath.Join(dir, "b.safetensors"), b)
		tc.lay(dir)
		_, err := OpenDecoder(dir)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not name %q", name, err, want)
			}
		}
		if strings.Contains(err.Error(), "is missing") {
			t.Errorf("%s: %q calls a tensor missing", name, err)
		}
	}
}

// TestShapeRefused: a matrix of three dimensions is no matrix, even where the
// numbers are right.
func TestShapeRefused(t *testing.T) {
	const name = "model.layers.0.self_attn.q_proj.weight"
	_, err := OpenDecoder(toy(t, "", func(m map[string]tensor.Tensor) { m[name] = f32(name, []int{1, 8, 8}, make([]float32, 64)...) }))
	if err == nil || !strings.Contains(err.Error(), name) {
		t.Errorf("error %v, want one that names %s", err, name)
	}
}

// TestLengthFrom: of every architecture, as plan needs it.
func TestLengthFrom(t *testing.T) {
	for rope, want := range map[string]int{
		`"rope_theta":7`:                                       0,
		`"rope_scaling":null`:                                  0,
		`"rope_scaling":{"type":"yarn","factor":4}`:            0,
		`"rope_scaling":{"type":"dynamic","factor":4}`:         64,
		`"rope_parameters":{"rope_type":"dynamic","factor":4}`: 64,
		`"rope_scaling":{"type":"longrope","long_factor":[1]},"original_max_position_embeddings":16`:                                                     16,
		`"rope_parameters":{"full_attention":{"rope_type":"longrope","original_max_position_embeddings":8},"sliding_attention":{"rope_type":"default"}}`: 8,
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "config.json"), `{"hidden_size":2,"num_hidden_layers":1,"vocab_size":3,"max_position_embeddings":64,`+rope+`}`)
		if c, err := ReadConfig(dir); err != nil || c.LengthFrom != want {
			t.Errorf("%s: %d, want %d (%v)", rope, c.LengthFrom, want, err)
		}
	}
}
