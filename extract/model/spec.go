package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Spec is all that a forward pass through a Llama-shaped decoder needs to know
// besides the weights.
type Spec struct {
	Config
	Heads   int // query heads
	KVHeads int // key and value heads; divides Heads
	HeadDim int
	FFN     int // width of the gated MLP
	Eps     float64
	Rope    Rope
	QKVBias bool
	OBias   bool
	MLPBias bool
	QKNorm  bool  // RMS norm of each q and k head before the rotation
	Windows []int // per layer: a token sees itself and the Windows[l]-1 before it; 0: all
	Tied    bool
	// Interleaved says that the q and k rows of each head are stored as pairs
	// (first half, second half), as llama-architecture GGUF files do.
	Interleaved bool
}

// ReadSpec reads the specification of the model at path, strictly.
func ReadSpec(path string) (Spec, error) {
	if isGGUF(path) {
		return readGGUFSpec(path)
	}
	j, err := readJSONConfig(path)
	if err != nil {
		return Spec{}, err
	}
	c, err := ReadConfig(path)
	if err != nil {
		return Spec{}, err
	}
	s, err := j.spec(c)
	if err != nil {
		return Spec{}, fmt.Errorf("%s: %w", j.path, err)
	}
	return s, nil
}

// family is what the model types differ in.
type family struct {
	arch       string
	qkvBias    bool // always, whatever the configuration says
	biasKeys   bool // attention_bias, mlp_bias are options
	qkNorm     bool
	window     bool // sliding_window applies to every layer
	layerTypes bool // use_sliding_window, max_window_layers, layer_types
	headDim    int  // default; 0: hidden_size / num_attention_heads
}

func familyOf(modelType string) (family, error) {
	switch modelType {
	case "llama":
		return family{arch: "LlamaForCausalLM", biasKeys: true}, nil
	case "mistral":
		return family{arch: "MistralForCausalLM", window: true}, nil
	case "qwen2":
		return family{arch: "Qwen2ForCausalLM", qkvBias: true, layerTypes: true}, nil
	case "qwen3":
		return family{arch: "Qwen3ForCausalLM", biasKeys: true, qkNorm: true, layerTypes: true, headDim: 128}, nil
	}
	return family{}, fmt.Errorf("model_type %q: %w (llama, mistral, qwen2 and qwen3 are)", modelType, ErrUnsupported)
}

// hfOptions are the keys of config.json that decide what is computed.
type hfOptions struct {
	Heads        int      `json:"num_attention_heads"`
	KVHeads      int      `json:"num_key_value_heads"`
	HeadDim      int      `json:"head_dim"`
	FFN          int      `json:"intermediate_size"`
	Eps          float64  `json:"rms_norm_eps"`
	Act          string   `json:"hidden_act"`
	Tied         bool     `json:"tie_word_embeddings"`
	AttnBias     bool     `json:"attention_bias"`
	MLPBias      bool     `json:"mlp_bias"`
	Window       int      `json:"sliding_window"`
	UseWindow    bool     `json:"use_sliding_window"`
	WindowLayers *int     `json:"max_window_layers"`
	LayerTypes   []string `json:"layer_types"`
}

// handledKeys are read here or in the rope code; harmlessKeys change nothing
// that a prefill computes.
func handledKeys() []string {
	return []string{
		"architectures", "model_type", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings",
		"num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "rms_norm_eps", "hidden_act",
		"tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window",
		"max_window_layers", "layer_types", "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor",
		"original_max_position_embeddings", "rope_interleaved", "is_causal",
	}
}

func harmlessKeys() []string {
	return []string{
		"attention_dropout", "auto_map", "bos_token_id", "chunk_size_feed_forward", "dtype", "eos_token_id",
		"hidden_dropout", "id2label", "initializer_range", "is_llama_config", "label2id", "pad_token_id",
		"pretraining_tp", "rope_ratio", "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id",
		"use_cache", "use_return_dict", "unsloth_version", "unsloth_fixed", "return_dict", "output_attentions",
		"output_hidden_states", "problem_type", "sep_token_id", "decoder_start_token_id", "name_or_path",
		"tokenizer_class", "max_length", "max_sequence_length", "model_max_length", "do_sample", "temperature", "top_p", "top_k",
		"task_specific_params", "finetuning_task",
	}
}

// checkKeys refuses an option that is not known here, unless it is off.
func (j jsonConfig) checkKeys() error {
	known := append(handledKeys(), harmlessKeys()...)
	var odd []string
	for key, raw := range j.text {
		off := slices.Contains([]string{"null", "false", "{}", "[]", "0", "0.0", `""`}, string(raw))
		if !off && !slices.Contains(known, key) && !strings.HasPrefix(key, "_") {
			odd = append(odd, key)
		}
	}
	if len(odd) > 0 {
		slices.Sort(odd)
		return fmt.Errorf("option %q: %w", odd[0], ErrUnsupported)
	}
	if raw, ok := j.text["is_causal"]; ok && string(raw) != "true" {
		return fmt.Errorf("is_causal %s: %w (only causal attention is)", raw, ErrUnsupported)
	}
	return nil
}

func (j jsonConfig) spec(c Config) (Spec, error) {
	s := Spec{Config: c}
	if j.nested != "" {
		return s, fmt.Errorf("%s of %q: %w (only plain language models are)", j.nested, c.ModelType, ErrUnsupported)
	}
	f, err := familyOf(c.ModelType)
	if err != nil {
		return s, err
	}
	if c.Arch == "" {
		return s, fmt.Errorf("architectures is missing: name the model's class there, [%q]", f.arch)
	}
	if c.Arch != f.arch {
		return s, fmt.Errorf("architecture %q of model_type %q: %w (%s is)", c.Arch, c.ModelType, ErrUnsupported, f.arch)
	}
	if err := j.checkKeys(); err != nil {
		return s, err
	}
	o := hfOptions{Eps: 1e-6, Act: "silu"}
	if _, ok := j.text["sliding_window"]; f.window && !ok {
		o.Window = 4096 // what transformers takes where the key is missing; null is none
	}
	for key, v := range map[string]any{
		"num_attention_heads": &o.Heads, "num_key_value_heads": &o.KVHeads, "head_dim": &o.HeadDim,
		"intermediate_size": &o.FFN, "rms_norm_eps": &o.Eps, "hidden_act": &o.Act, "tie_word_embeddings": &o.Tied,
		"attention_bias": &o.AttnBias, "mlp_bias": &o.MLPBias, "sliding_window": &o.Window,
		"use_sliding_window": &o.UseWindow, "max_window_layers": &o.WindowLayers, "layer_types": &o.LayerTypes,
	} {
		err = errors.Join(err, j.read(j.text, key, v))
	}
	if err != nil {
		return s, err
	}
	if err := s.fill(f, o, j.text); err != nil {
		return s, err
	}
	s.Rope, err = j.rope(s)
	if err != nil {
		return s, err
	}
	return s, s.check()
}

func (s *Spec) fill(f family, o hfOptions, keys map[string]json.RawMessage) error {
	if o.Act != "silu" {
		return fmt.Errorf("hidden_act %q: %w (silu is)", o.Act, ErrUnsupported)
	}
	if !f.biasKeys && (o.AttnBias || o.MLPBias) || f.qkNorm && o.MLPBias {
		return fmt.Errorf("attention_bias or mlp_bias in a %s model: %w", s.ModelType, ErrUnsupported)
	}
	var interleaved bool
	if raw, ok := keys["rope_interleaved"]; ok && json.Unmarshal(raw, &interleaved) == nil && interleaved {
		return fmt.Errorf("rope_interleaved: %w", ErrUnsupported)
	}
	s.Heads, s.KVHeads, s.HeadDim, s.FFN, s.Eps, s.Tied = o.Heads, o.KVHeads, o.HeadDim, o.FFN, o.Eps, o.Tied
	if s.KVHeads == 0 {
		if f.arch != "LlamaForCausalLM" {
			return errors.New("num_key_value_heads is missing")
		}
		s.KVHeads = s.Heads
	}
	if s.HeadDim == 0 && s.Heads > 0 {
		s.HeadDim = s.Hidden / s.Heads
		if f.headDim > 0 {
			s.HeadDim = f.headDim
		}
	}
	s.QKVBias, s.OBias, s.MLPBias, s.QKNorm = f.qkvBias || o.AttnBias, o.AttnBias, o.MLPBias, f.qkNorm
	return s.fillWindows(f, o, keys)
}

func (s *Spec) fillWindows(f family, o hfOptions, keys map[string]json.RawMessage) error {
	s.Windows = make([]int, s.Layers)
	if raw, ok := keys["sliding_window"]; f.window && ok && string(raw) != "null" && o.Window <= 0 {
		return fmt.Errorf("sliding_window %d is not positive (null is none)", o.Window)
	}
	if o.LayerTypes != nil && len(o.LayerTypes) != s.Layers {
		return fmt.Errorf("layer_types lists %d layers of %d", len(o.LayerTypes), s.Layers)
	}
	for l := range s.Windows {
		sliding := f.window && o.Window > 0
		if f.layerTypes && o.UseWindow && o.LayerTypes == nil {
			if o.WindowLayers == nil {
				return errors.New("max_window_layers is missing, and use_sliding_window is set")
			}
			sliding = l >= *o.WindowLayers
		}
		if o.LayerTypes != nil {
			switch kind := o.LayerTypes[l]; {
			case kind == "full_attention" && !f.window:
				sliding = false
			case kind == "sliding_attention" && (f.window || f.layerTypes && o.UseWindow):
				sliding = true
			default:
				return fmt.Errorf("layer_types[%d] %q of a %s model: %w", l, kind, s.ModelType, ErrUnsupported)
			}
		}
		if sliding {
			if o.Window <= 0 {
				return errors.New("sliding_window is missing or not positive, and a layer uses it")
			}
			s.Windows[l] = o.Window
		}
	}
	return nil
}

// check holds the sizes to what the kernels and the arithmetic of heads need.
func (s *Spec) check() error {
	for _, x := range []struct {
		what, hf, gguf string
		v              int
	}{
		{"attention heads", "num_attention_heads", "attention.head_count", s.Heads},
		{"key/value heads", "num_key_value_heads", "attention.head_count_kv", s.KVHeads},
		{"head size", "head_dim", "attention.key_length", s.HeadDim},
		{"MLP width", "intermediate_size", "feed_forward_length", s.FFN},
	} {
		if x.v <= 0 || x.v > 1<<24 {
			key := x.hf
			if isGGUF(s.Path) {
				key = s.Arch + "." + x.gguf
			}
			return fmt.Errorf("%s is missing or out of range (%s: %d)", key, x.what, x.v)
		}
	}
	if s.Heads%s.KVHeads != 0 {
		return fmt.Errorf("%d attention heads are no multiple of %d key/value heads", s.Heads, s.KVHeads)
	}
	if s.HeadDim%4 != 0 || s.Hidden%4 != 0 || s.FFN%4 != 0 {
		return fmt.Errorf("head size %d, hidden size %d or MLP width %d is no multiple of 4: %w", s.HeadDim, s.Hidden, s.FFN, ErrUnsupported)
	}
	if s.Eps <= 0 {
		return fmt.Errorf("rms_norm_eps %g is not positive", s.Eps)
	}
	return nil
}

// sortedKeys returns the keys of m, sorted.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
