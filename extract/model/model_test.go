package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func f32(name string, shape []int, v ...float32) tensor.Tensor {
	return tensor.Tensor{Name: name, Type: tensor.F32, Shape: shape, Data: appendF32(nil, v)}
}

func writeTensors(t *testing.T, path string, ts ...tensor.Tensor) {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Write(&b, ts, nil); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
}

func TestReadConfig(t *testing.T) {
	tests := []struct {
		name, json string
		want       Config
		err        string
	}{
		{
			name: "nested",
			json: `{"architectures":["KimiK25ForConditionalGeneration"],"model_type":"kimi_k25","vision_config":{"hidden_size":1152},
				"text_config":{"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"vocab_size":163840,"max_position_embeddings":262144}}`,
			want: Config{Arch: "KimiK25ForConditionalGeneration", ModelType: "kimi_k25", Layers: 61, Hidden: 7168, Vocab: 163840, MaxPos: 262144},
		},
		{
			name: "flat",
			json: `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":576,"num_hidden_layers":30,"vocab_size":49152,"max_position_embeddings":8192,"text_config":null}`,
			want: Config{Arch: "LlamaForCausalLM", ModelType: "llama", Layers: 30, Hidden: 576, Vocab: 49152, MaxPos: 8192},
		},
		{name: "no hidden size", json: `{"num_hidden_layers":2,"vocab_size":9}`, err: "hidden_size is missing"},
		{name: "bad type", json: `{"num_hidden_layers":"two"}`, err: "num_hidden_layers"},
		{name: "no json", json: `nope`, err: "config.json"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "config.json"), tc.json)
			got, err := ReadConfig(dir)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want one that names %q", err, tc.err)
				}
				return
			}
			tc.want.Path = dir
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Fatalf("%v\n%s", err, diff)
			}
		})
	}
}

// tiny writes a model of 2 hidden units and 3 tokens, its head in two shards.
func tiny(t *testing.T, tied string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), `{"architectures":["X"],"model_type":"x","hidden_size":2,"num_hidden_layers":1,"vocab_size":3,"rms_norm_eps":1e-6,"tie_word_embeddings":`+tied+`}`)
	write(t, filepath.Join(dir, "model.safetensors.index.json"),
		`{"weight_map":{"language_model.model.embed_tokens.weight":"a.safetensors","language_model.model.norm.weight":"b.safetensors","language_model.lm_head.weight":"b.safetensors"}}`)
	writeTensors(t, filepath.Join(dir, "a.safetensors"), f32("language_model.model.embed_tokens.weight", []int{3, 2}, 1, 2, 3, 4, 5, 6))
	writeTensors(t, filepath.Join(dir, "b.safetensors"), f32("language_model.model.norm.weight", []int{2}, 1, -1),
		f32("language_model.lm_head.weight", []int{3, 2}, 1, 0, 0, 1, -1, 0))
	return dir
}

func TestHeadScore(t *testing.T) {
	h, err := OpenHead(tiny(t, "false"))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	// The row (3, -4): normed (3, 4)/sqrt(12.5), logits (a, b, -a); raw (3, -4, -3).
	got, err := h.Score(context.Background(), appendF32(nil, []float32{3, -4, 3, -4}), "fp32", []uint32{1, 0})
	if err != nil {
		t.Fatal(err)
	}
	a, b := 3/math.Sqrt(12.5), 4/math.Sqrt(12.5)
	z := math.Log(math.Exp(a) + math.Exp(b) + math.Exp(-a))
	zr := math.Log(math.Exp(3) + math.Exp(-4) + math.Exp(-3))
	want := []Score{
		{Top1: true, LogProb: b - z, RawTop1: false, RawLogProb: -4 - zr},
		{Top1: false, LogProb: a - z, RawTop1: true, RawLogProb: 3 - zr},
	}
	near := cmp.Comparer(func(x, y float64) bool { return math.Abs(x-y) < 1e-5 })
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Fatal(diff)
	}
	for name, call := range map[string]func() error{
		"short":      func() error { _, err := h.Score(t.Context(), make([]byte, 7), "fp32", []uint32{1}); return err },
		"vocabulary": func() error { _, err := h.Score(t.Context(), make([]byte, 8), "fp32", []uint32{3}); return err },
		"dtype":      func() error { _, err := h.Score(t.Context(), make([]byte, 8), "fp8", []uint32{1}); return err },
	} {
		if call() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWriteSafetensors(t *testing.T) {
	h, err := OpenHead(tiny(t, "false"))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	path := filepath.Join(t.TempDir(), "target_head.safetensors")
	var b bytes.Buffer
	if err := h.WriteSafetensors(&b); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]tensor.Tensor{"model.embed_tokens.weight": h.embed, "model.norm.weight": h.norm, "lm_head.weight": h.lm} {
		got, ok := f.Tensor(name)
		if !ok || !bytes.Equal(got.Data, want.Data) || !cmp.Equal(got.Shape, want.Shape) {
			t.Errorf("%s: differs", name)
		}
	}
}

func TestFingerprint(t *testing.T) {
	print := func(dir string) string {
		t.Helper()
		s, err := Fingerprint(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dir := tiny(t, "false")
	base := print(dir)
	if other := print(tiny(t, "false")); other != base {
		t.Errorf("a copy has another fingerprint")
	}
	changes := map[string]func(){
		"config": func() {
			var m map[string]any
			b, _ := os.ReadFile(filepath.Join(dir, "config.json"))
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			m["rope_theta"] = 7
			b, _ = json.Marshal(m)
			write(t, filepath.Join(dir, "config.json"), string(b))
		},
		"shard header": func() {
			writeTensors(t, filepath.Join(dir, "a.safetensors"), f32("x", []int{6}, 1, 2, 3, 4, 5, 6))
		},
		"shard gone": func() { os.Remove(filepath.Join(dir, "a.safetensors")) },
	}
	seen := map[string]string{base: "base"}
	for _, name := range []string{"config", "shard header", "shard gone"} {
		changes[name]()
		p := print(dir)
		if was, ok := seen[p]; ok {
			t.Errorf("after %q the fingerprint is that of %q", name, was)
		}
		seen[p] = name
	}
	if _, err := OpenHead(dir); !errors.Is(err, ErrNoWeights) {
		t.Errorf("a model without its shard: %v, want ErrNoWeights", err)
	}
}
