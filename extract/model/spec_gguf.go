package model

import (
	"errors"
	"fmt"
	"slices"
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

// ggufKeys are the keys below the architecture's name that are read here or
// change nothing.
func ggufKeys() []string {
	return []string{
		"block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
		"attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
		"attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.dimension_count", "rope.freq_base",
		"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
		"rope.scaling.yarn_log_multiplier", "rope.scaling.finetuned",
	}
}

func ggufSpec(path string, f *gguf.File) (Spec, error) {
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
		k, ok := strings.CutPrefix(key, c.Arch+".")
		off := f.KV[key].Kind != gguf.String && f.KV[key].Kind != gguf.Array && f.KV[key].Int == 0 && f.KV[key].Float == 0
		if ok && !off && !slices.Contains(ggufKeys(), k) {
			return s, fmt.Errorf("metadata %q: %w", key, ErrUnsupported)
		}
		if ok && f.KV[key].Kind == gguf.Array {
			return s, fmt.Errorf("metadata %q differs from layer to layer: %w", key, ErrUnsupported)
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
	for l := range s.Windows {
		s.Windows[l] = num("attention.sliding_window")
	}
	_, untied := f.Tensor("output.weight")
	s.Tied = !untied
	return s, errors.Join(s.ggufBiases(f), s.ggufRope(f), s.check())
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
		if strings.HasPrefix(name, "blk.") {
			_, part, _ := strings.Cut(name[len("blk."):], ".")
			name = part
		}
		return slices.Contains([]string{
			"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight", "attn_norm.weight",
			"ffn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_gate.weight",
			"ffn_up.weight", "ffn_down.weight", "attn_q_norm.weight", "attn_k_norm.weight", "attn_q.bias", "attn_k.bias",
			"attn_v.bias", "attn_output.bias", "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias",
		}, name)
	}
	for _, t := range f.Tensors {
		if !known(t.Name) {
			return fmt.Errorf("tensor %q: %w", t.Name, ErrUnsupported)
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
	switch kind := f.KV[s.Arch+".rope.scaling.type"].Str; kind {
	case "", "none":
	case "linear":
		s.Rope.Type, s.Rope.Factor = kind, at("scaling.factor")
	case "yarn":
		h := hfRope{RopeType: kind, Theta: s.Rope.Theta, Factor: at("scaling.factor"), Original: int(f.KV[s.Arch+".rope.scaling.original_context_length"].Int)}
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
