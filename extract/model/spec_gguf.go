package model

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/extract/model/gguf"
)

func readGGUFSpec(path string) (Spec, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return Spec{}, err
	}
	s, err := ggufSpec(path, f)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return s, errors.Join(err, f.Close())
}

// ggufKey returns a kind of value, of those that are read alike, that a key
// below the architecture's name must have. ok is false for a key that is not
// known to be read here or to change nothing.
func ggufKey(key string) (kind gguf.Kind, ok bool) {
	switch key {
	case "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
		"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
		"attention.sliding_window", "rope.dimension_count", "rope.scaling.original_context_length":
		return gguf.Int64, true
	case "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor",
		"rope.scaling.yarn_log_multiplier":
		return gguf.Float64, true
	case "attention.causal", "rope.scaling.finetuned":
		return gguf.Bool, true
	case "rope.scaling.type":
		return gguf.String, true
	}
	return 0, false
}

// checkGGUFKey refuses metadata that is not known here, unless it is off, or
// that has another type than is read.
func checkGGUFKey(key, below string, v gguf.Value) error {
	kind, known := ggufKey(below)
	off := v.Kind != gguf.String && v.Kind != gguf.Array && v.Int == 0 && v.Float == 0
	switch {
	case v.Kind == gguf.Array:
		return fmt.Errorf("metadata %q differs from layer to layer: %w", key, ErrUnsupported)
	case !known && off:
		return nil
	case !known:
		return fmt.Errorf("metadata %q: %w", key, ErrUnsupported)
	case below == "attention.causal" && v.Int == 0:
		return fmt.Errorf("metadata %q is false: %w (only causal attention is)", key, ErrUnsupported)
	}
	same := v.Kind == kind
	switch v.Kind {
	case gguf.Uint8, gguf.Int8, gguf.Uint16, gguf.Int16, gguf.Uint32, gguf.Int32, gguf.Uint64, gguf.Int64:
		same = kind == gguf.Int64
	case gguf.Float32:
		same = kind == gguf.Float64
	}
	if !same {
		return fmt.Errorf("metadata %q has a value of GGUF type %d, which is not read as such: %w", key, v.Kind, ErrUnsupported)
	}
	return nil
}

// wholeGGUF refuses one part of a model in several files.
func wholeGGUF(f *gguf.File) error {
	if n := f.KV["split.count"].Int; n > 1 {
		return fmt.Errorf("is one of %d files of a split model: %w (join them with llama-gguf-split --merge)", n, ErrUnsupported)
	}
	return nil
}

func ggufSpec(path string, f *gguf.File) (Spec, error) {
	if err := wholeGGUF(f); err != nil {
		return Spec{}, err
	}
	c, err := ggufConfig(path, f)
	if err != nil {
		return Spec{}, err
	}
	s := Spec{Config: c, Windows: make([]int, c.Layers)}
	switch c.Arch {
	case "llama":
		s.Interleaved = true
	case "qwen2":
		s.QKVBias = true
	case "qwen3":
		s.QKNorm = true
	default:
		return s, fmt.Errorf("architecture %q: %w (llama, qwen2 and qwen3 are)", c.Arch, ErrUnsupported)
	}
	for _, key := range sortedKeys(f.KV) {
		if k, ok := strings.CutPrefix(key, c.Arch+"."); ok {
			if err := checkGGUFKey(key, k, f.KV[key]); err != nil {
				return s, err
			}
		}
	}
	num := func(k string) int { return int(f.KV[c.Arch+"."+k].Int) }
	s.Heads, s.KVHeads, s.FFN = num("attention.head_count"), num("attention.head_count_kv"), num("feed_forward_length")
	s.HeadDim = num("attention.key_length")
	s.Eps = f.KV[c.Arch+".attention.layer_norm_rms_epsilon"].Float
	if s.KVHeads == 0 {
		s.KVHeads = s.Heads
	}
	if s.HeadDim == 0 && s.Heads > 0 {
		s.HeadDim = s.Hidden / s.Heads
	}
	if v := num("attention.value_length"); v != 0 && v != s.HeadDim {
		return s, fmt.Errorf("attention.value_length %d beside heads of %d: %w", v, s.HeadDim, ErrUnsupported)
	}
	if d := num("rope.dimension_count"); d != 0 && d != s.HeadDim {
		return s, fmt.Errorf("rope.dimension_count %d beside heads of %d: %w", d, s.HeadDim, ErrUnsupported)
	}
	if err := ggufWindow(c, num("attention.sliding_window")); err != nil {
		return s, err
	}
	_, untied := f.Tensor("output.weight")
	s.Tied = !untied
	return s, errors.Join(s.ggufBiases(f), s.ggufRope(f), s.check())
}

// ggufWindow refuses a window that the context does not lie within. Neither
// llama.cpp nor transformers reads one of these architectures: they attend to all
// tokens, in every layer, which a model that was trained with a window does not,
// and which of its layers have it is not said.
func ggufWindow(c Config, window int) error {
	if window == 0 || window >= c.MaxPos && c.MaxPos > 0 {
		return nil
	}
	return fmt.Errorf("metadata %q is %d, in a context of %d: %w (which layers have the window is not said, and other programs attend to all tokens; take the model's safetensors, whose config.json says it, or a file without the key)",
		c.Arch+".attention.sliding_window", window, c.MaxPos, ErrUnsupported)
}

// ggufBiases takes biases from the tensors that are there, since GGUF has no
// option for them.
func (s *Spec) ggufBiases(f *gguf.File) error {
	has := func(name string) bool { _, ok := f.Tensor(name); return ok }
	if s.Arch == "llama" {
		s.QKVBias, s.OBias = has("blk.0.attn_q.bias"), has("blk.0.attn_output.bias")
		s.MLPBias = has("blk.0.ffn_gate.bias")
	}
	known := func(name string) bool {
		if rest, ok := strings.CutPrefix(name, "blk."); ok {
			layer, part, _ := strings.Cut(rest, ".")
			if n, err := strconv.Atoi(layer); err != nil || n >= s.Layers {
				return false // llama.cpp, too, wants as many layers as block_count says
			}
			name = part
		}
		if name == "rope_freqs.weight" {
			return s.Arch == "llama" // llama.cpp reads it for no other
		}
		return slices.Contains([]string{
			"token_embd.weight", "output_norm.weight", "output.weight", "attn_norm.weight",
			"ffn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_gate.weight",
			"ffn_up.weight", "ffn_down.weight", "attn_q_norm.weight", "attn_k_norm.weight", "attn_q.bias", "attn_k.bias",
			"attn_v.bias", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias",
		}, name)
	}
	for _, t := range f.Tensors {
		if !known(t.Name) {
			return fmt.Errorf("tensor %q: %w in a %s model of %d layers", t.Name, ErrUnsupported, s.Arch, s.Layers)
		}
	}
	return nil
}

func (s *Spec) ggufRope(f *gguf.File) error {
	at := func(k string) float64 { return f.KV[s.Arch+".rope."+k].Float }
	s.Rope = Rope{Type: "default", Theta: at("freq_base"), MaxPos: s.MaxPos, Truncate: true}
	if s.Rope.Theta == 0 {
		s.Rope.Theta = 10000
	}
	kind := f.KV[s.Arch+".rope.scaling.type"].Str
	if kind == "" && at("scaling.factor") != 0 {
		kind = "linear" // what llama.cpp takes a factor alone for
	}
	switch kind {
	case "", "none":
	case "linear":
		s.Rope.Type, s.Rope.Factor = kind, at("scaling.factor")
	case "yarn":
		h := hfRope{RopeType: kind, Theta: s.Rope.Theta, Factor: at("scaling.factor"), Original: int(f.KV[s.Arch+".rope.scaling.original_context_length"].Int)}
		if h.Original == 0 {
			h.Original = s.MaxPos
		}
		if at("scaling.attn_factor") != 0 || at("scaling.yarn_log_multiplier") != 0 {
			return fmt.Errorf("rope.scaling.attn_factor or yarn_log_multiplier: %w", ErrUnsupported)
		}
		var err error
		if s.Rope, err = h.resolve(*s); err != nil {
			return err
		}
	default:
		return fmt.Errorf("rope.scaling.type %q: %w (linear and yarn are)", kind, ErrUnsupported)
	}
	if s.Rope.Type == "linear" && !(s.Rope.Factor >= 1) {
		return fmt.Errorf("rope.scaling.factor is %g", s.Rope.Factor)
	}
	t, ok := f.Tensor("rope_freqs.weight")
	if !ok {
		return nil
	}
	m, err := t.Matrix()
	if err != nil {
		return err
	}
	if m.Rows != 1 || m.Cols != s.HeadDim/2 {
		return fmt.Errorf("tensor %q has shape %v, expected [%d]", t.Name, t.Shape, s.HeadDim/2)
	}
	s.Rope.Divisors = make([]float32, m.Cols)
	m.Row(0, s.Rope.Divisors)
	for i, d := range s.Rope.Divisors {
		if !(d > 0) {
			return fmt.Errorf("tensor %q: value %d is %g", t.Name, i, d)
		}
	}
	return nil
}
