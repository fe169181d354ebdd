package model

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// ggufToy is a GGUF llama of one layer that ReadSpec takes: hidden size 8, two
// heads of 4.
type ggufToy struct {
	kv      map[string]any // uint32, float32, bool, string
	tensors map[string][]uint64
	order   binary.AppendByteOrder
	version uint32
}

func newGGUFToy() ggufToy {
	return ggufToy{
		kv: map[string]any{
			"general.architecture": "llama", "llama.block_count": uint32(1), "llama.embedding_length": uint32(8), "llama.context_length": uint32(64),
			"llama.feed_forward_length": uint32(4), "llama.attention.head_count": uint32(2), "llama.attention.head_count_kv": uint32(1),
			"llama.attention.layer_norm_rms_epsilon": float32(1e-5),
		},
		tensors: map[string][]uint64{"token_embd.weight": {8, 3}, "blk.0.attn_norm.weight": {8}},
		order:   binary.LittleEndian, version: 3,
	}
}

func (g ggufToy) write(t *testing.T) string {
	t.Helper()
	o, b := g.order, []byte("GGUF")
	str := func(s string) { b = append(o.AppendUint64(b, uint64(len(s))), s...) }
	b = o.AppendUint64(o.AppendUint64(o.AppendUint32(b, g.version), uint64(len(g.tensors))), uint64(len(g.kv)))
	for _, k := range sortedKeys(g.kv) {
		str(k)
		switch v := g.kv[k].(type) {
		case uint32:
			b = o.AppendUint32(o.AppendUint32(b, 4), v)
		case float32:
			b = o.AppendUint32(o.AppendUint32(b, 6), math.Float32bits(v))
		case bool:
			b = append(o.AppendUint32(b, 7), 0)
			if v {
				b[len(b)-1] = 1
			}
		case string:
			b = o.AppendUint32(b, 8)
			str(v)
		default:
			t.Fatalf("%s: %T", k, v)
		}
	}
	at := uint64(0)
	for _, name := range sortedKeys(g.tensors) {
		str(name)
		b = o.AppendUint32(b, uint32(len(g.tensors[name])))
		n := uint64(4)
		for _, d := range g.tensors[name] {
			b, n = o.AppendUint64(b, d), n*d
		}
		b = o.AppendUint64(o.AppendUint32(b, 0), at)
		at += (n + 31) / 32 * 32
	}
	b = append(b, make([]byte, (32-len(b)%32)%32+int(at))...)
	path := filepath.Join(t.TempDir(), "m.gguf")
	write(t, path, string(b))
	return path
}

// TestGGUFSpecRefuses: metadata and tensors that llama.cpp would compute by, or
// refuse.
func TestGGUFSpecRefuses(t *testing.T) {
	set := func(k string, v any) func(*ggufToy) { return func(g *ggufToy) { g.kv[k] = v } }
	tests := []struct {
		name, want string
		change     func(*ggufToy)
	}{
		{"not causal", "attention.causal", set("llama.attention.causal", false)},
		{"theta that is no float", "rope.freq_base", set("llama.rope.freq_base", uint32(500000))},
		{"heads that are no integer", "head_count_kv", set("llama.attention.head_count_kv", float32(1))},
		{"experts", "expert_count", set("llama.expert_count", uint32(8))},
		{"half a rotation", "rope.dimension_count", set("llama.rope.dimension_count", uint32(2))},
		{"a window", "llama.attention.sliding_window", set("llama.attention.sliding_window", uint32(63))},
		{"a window in a context of unknown length", "llama.attention.sliding_window", func(g *ggufToy) {
			g.kv["llama.attention.sliding_window"] = uint32(64)
			delete(g.kv, "llama.context_length")
		}},
		{"a part", "llama-gguf-split", set("split.count", uint32(3))},
		{"a layer too many", "blk.1.attn_norm.weight", func(g *ggufToy) { g.tensors["blk.1.attn_norm.weight"] = []uint64{8} }},
		{"experts' tensors", "ffn_gate_exps", func(g *ggufToy) { g.tensors["blk.0.ffn_gate_exps.weight"] = []uint64{8, 4, 2} }},
		{"long factors", "rope_factors_long", func(g *ggufToy) { g.tensors["rope_factors_long.weight"] = []uint64{2} }},
		{"factors of another size", "rope_freqs", func(g *ggufToy) { g.tensors["rope_freqs.weight"] = []uint64{4} }},
		{"big endian", "big-endian", func(g *ggufToy) { g.order = binary.BigEndian }},
		{"old", "version 1", func(g *ggufToy) { g.version = 1 }},
	}
	for _, tc := range tests {
		g := newGGUFToy()
		tc.change(&g)
		if _, err := ReadSpec(g.write(t)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one that names %q", tc.name, err, tc.want)
		}
	}
}

// TestGGUFWindowOfAll: a window that the context lies within, or none, leaves
// every layer to attend to all tokens, as llama.cpp and transformers have it.
func TestGGUFWindowOfAll(t *testing.T) {
	for _, window := range []uint32{0, 64, 4096} {
		g := newGGUFToy()
		g.kv["llama.attention.sliding_window"] = window
		if s, err := ReadSpec(g.write(t)); err != nil || len(s.Windows) != 1 || s.Windows[0] != 0 {
			t.Errorf("a window of %d: %v, %v", window, s.Windows, err)
		}
	}
}

// TestGGUFRope: what llama.cpp takes the metadata of the rotation for.
func TestGGUFRope(t *testing.T) {
	const at = "llama.rope.scaling."
	for name, tc := range map[string]struct {
		kv   map[string]any
		want Rope
	}{
		"nothing":       {nil, Rope{Type: "default"}},
		"causal":        {map[string]any{"llama.attention.causal": true}, Rope{Type: "default"}},
		"a factor":      {map[string]any{at + "factor": float32(4)}, Rope{Type: "linear", Factor: 4}},
		"linear":        {map[string]any{at + "factor": float32(4), at + "type": "linear"}, Rope{Type: "linear", Factor: 4}},
		"a factor, off": {map[string]any{at + "factor": float32(4), at + "type": "none"}, Rope{Type: "default"}},
		"yarn":          {map[string]any{at + "factor": float32(4), at + "type": "yarn"}, Rope{Type: "yarn", Factor: 4, Original: 64}},
	} {
		g := newGGUFToy()
		for k, v := range tc.kv {
			g.kv[k] = v
		}
		s, err := ReadSpec(g.write(t))
		if r := s.Rope; err != nil || r.Type != tc.want.Type || r.Factor != tc.want.Factor || tc.want.Original != 0 && r.Original != tc.want.Original {
			t.Errorf("%s: %+v, want %+v (%v)", name, r, tc.want, err)
		}
	}
}

// TestGGUFNames: errors name tensors as the file does.
func TestGGUFNames(t *testing.T) {
	if _, err := OpenDecoder(newGGUFToy().write(t)); err == nil || !strings.Contains(err.Error(), `"blk.0.ffn_norm.weight" is missing`) {
		t.Errorf("error %v, want one that names the first tensor that is missing", err)
	}
}
