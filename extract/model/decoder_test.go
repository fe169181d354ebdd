package model

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/extract/model/tensor"
	"eaglebatch/fixtures"
)

// toy writes a llama of one layer, hidden size 8 and two heads of 4. change may
// spoil it.
func toy(t *testing.T, extra string, change func(map[string]tensor.Tensor)) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":8,
		"num_hidden_layers":1,"vocab_size":3,"num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":4,
		"max_position_embeddings":16,"rms_norm_eps":1e-5,"tie_word_embeddings":true`+extra+`}`)
	ts := map[string]tensor.Tensor{}
	for name, shape := range map[string][]int{
		"model.embed_tokens.weight": {3, 8}, "model.norm.weight": {8},
		"model.layers.0.input_layernorm.weight": {8}, "model.layers.0.post_attention_layernorm.weight": {8},
		"model.layers.0.self_attn.q_proj.weight": {8, 8}, "model.layers.0.self_attn.k_proj.weight": {4, 8},
		"model.layers.0.self_attn.v_proj.weight": {4, 8}, "model.layers.0.self_attn.o_proj.weight": {8, 8},
		"model.layers.0.mlp.gate_proj.weight": {4, 8}, "model.layers.0.mlp.up_proj.weight": {4, 8},
		"model.layers.0.mlp.down_proj.weight": {8, 4},
	} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		ts[name] = f32(name, shape, make([]float32, n)...)
	}
	if change != nil {
		change(ts)
	}
	var list []tensor.Tensor
	for _, name := range sortedKeys(ts) {
		list = append(list, ts[name])
	}
	writeTensors(t, filepath.Join(dir, "model.safetensors"), list...)
	return dir
}

func TestOpenDecoder(t *testing.T) {
	const bias = "model.layers.0.self_attn.q_proj.bias"
	tests := []struct {
		name, extra, want string
		change            func(map[string]tensor.Tensor)
	}{
		{name: "good"},
		{name: "missing tensor", want: "down_proj", change: func(m map[string]tensor.Tensor) { delete(m, "model.layers.0.mlp.down_proj.weight") }},
		{name: "a bias that the configuration lacks", want: bias, change: func(m map[string]tensor.Tensor) { m[bias] = f32(bias, []int{8}, make([]float32, 8)...) }},
		{name: "a bias that the weights lack", extra: `,"attention_bias":true`, want: bias},
		{name: "shape", want: "k_proj", change: func(m map[string]tensor.Tensor) {
			m["model.layers.0.self_attn.k_proj.weight"] = f32("model.layers.0.self_attn.k_proj.weight", []int{8, 4}, make([]float32, 32)...)
		}},
		{name: "number format", want: "F8_E4M3", change: func(m map[string]tensor.Tensor) {
			x := m["model.layers.0.self_attn.v_proj.weight"]
			x.Type, x.Data = "F8_E4M3", x.Data[:32]
			m[x.Name] = x
		}},
		{name: "heads", extra: `,"head_dim":6`, want: "head size 6"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			d, err := OpenDecoder(toy(t, tc.extra, tc.change))
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if d.Heads != 2 || d.KVHeads != 1 || d.HeadDim != 4 || !d.Tied || len(d.Blocks) != 1 {
					t.Errorf("spec %+v", d.Spec)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want one that names %q", err, tc.want)
			}
		})
	}
}

// TestGGUFRefuses: an architecture, option or tensor that is not known.
func TestGGUFRefuses(t *testing.T) {
	src, err := fixtures.Copy(t.TempDir(), "models/gguf/llama-Q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"architecture": {"\x05\x00\x00\x00\x00\x00\x00\x00llama", "\x05\x00\x00\x00\x00\x00\x00\x00gemma"},
		"option":       {"llama.feed_forward_length", "llama.feed_backwrd_length"},
		"tensor":       {"blk.0.ffn_down.weight", "blk.0.ffn_dawn.weight"},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		write(t, path, strings.Replace(string(good), change[0], change[1], 1))
		if _, err := ReadSpec(path); err == nil {
			t.Errorf("%s: no error", name)
		} else if name != "architecture" && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ReadSpec(src); err != nil {
		t.Error(err)
	}
}

// TestSourceRow: the rows of a head stored as pairs come back as halves, each
// once.
func TestSourceRow(t *testing.T) {
	d := Decoder{Spec: Spec{HeadDim: 6, Interleaved: true}}
	want := []int{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}
	for i, w := range want {
		if got := d.SourceRow(i); got != w {
			t.Errorf("row %d comes from %d, want %d", i, got, w)
		}
	}
	if d.Interleaved = false; d.SourceRow(7) != 7 {
		t.Error("rows move though nothing is interleaved")
	}
}

// TestRopeKeys: both generations of keys mean the same.
func TestRopeKeys(t *testing.T) {
	specs := []string{
		`,"rope_theta":500000,"rope_scaling":{"type":"linear","factor":4}`,
		`,"rope_parameters":{"rope_theta":500000,"rope_type":"linear","factor":4}`,
	}
	var first []float32
	for _, extra := range specs {
		s, err := ReadSpec(toy(t, extra, nil))
		if err != nil {
			t.Fatal(err)
		}
		f, scale := s.Rope.Frequencies(s.HeadDim, 10)
		want := []float64{0.25, 1 / math.Sqrt(500000) / 4}
		for i := range want {
			if math.Abs(float64(f[i])/want[i]-1) > 1e-6 || scale != 1 {
				t.Errorf("%s: frequencies %v, want %v", extra, f, want)
			}
		}
		if first == nil {
			first = f
		}
		if f[1] != first[1] {
			t.Errorf("%s: differs from %s", extra, specs[0])
		}
	}
}

func TestReadSpecOfEveryFixture(t *testing.T) {
	models, err := fixtures.Models()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range models {
		path, err := fixtures.Copy(t.TempDir(), "models/"+name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig(path)
		if err != nil || !c.Weights {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		h, err := OpenHead(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if h.Vocab() != c.Vocab || h.Hidden() != c.Hidden {
			t.Errorf("%s: head of %d by %d, want %d by %d", name, h.Vocab(), h.Hidden(), c.Vocab, c.Hidden)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestScoreAgainstGolden: the head ranks first what transformers ranks first.
func TestScoreAgainstGolden(t *testing.T) {
	for _, name := range []string{"tiny-llama", "kimi-k2.5-tiny", "qwen2"} {
		path, err := fixtures.Copy(t.TempDir(), "models/"+name)
		if err != nil {
			t.Fatal(err)
		}
		g, err := fixtures.LoadGolden(fixtures.GoldenName(name))
		if err != nil {
			t.Fatal(err)
		}
		h, err := OpenHead(path)
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		for i, s := range g.Samples {
			var rows []byte
			for r := range s.IDs {
				rows = appendF32(rows, g.Row(s.States, r, len(g.Layers)-1))
			}
			scores, err := h.Score(t.Context(), rows, "fp32", s.Top1)
			if err != nil {
				t.Fatal(err)
			}
			for r, sc := range scores {
				if !sc.Top1 || sc.LogProb > 0 || math.IsNaN(sc.RawLogProb) {
					t.Errorf("%s sample %d row %d: %+v", name, i, r, sc)
				}
			}
		}
	}
}
