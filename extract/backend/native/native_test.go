package native

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
	"eaglebatch/extract/model"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/fixtures"
	"eaglebatch/internal/human"
)

func TestConformance(t *testing.T) {
	path, _, _ := goldenModel(t, "qwen3")
	open := func(t *testing.T, layers []int) backend.Backend {
		b, err := New(path, Options{Capture: layers, BatchTokens: 512})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	backendtest.Run(t, backendtest.Factory{
		New:         func(t *testing.T) backend.Backend { return open(t, []int{1, 2, 4}) },
		WithCapture: open,
		Cosine:      1 - 1e-12,
	})
}

// TestWrongStates checks that the comparison of the goldens refuses what must
// not pass for right.
func TestWrongStates(t *testing.T) {
	path, g, o := goldenModel(t, "tiny-llama")
	s := g.Samples[1]
	got := floats(serve(t, path, o, s.IDs)[0])
	if _, _, err := compare(got, s.States, g.Hidden); err != nil {
		t.Fatal(err)
	}
	if len(s.Wrong) < 4 {
		t.Fatalf("%d kinds of wrong states", len(s.Wrong))
	}
	for kind, states := range s.Wrong {
		if _, _, err := compare(got, states, g.Hidden); err == nil {
			t.Errorf("%s: passes", kind)
		}
	}
	layers := len(g.Layers)
	for name, by := range map[string]int{"layer k-1": -1, "layer k+1": 1} {
		for k := range layers {
			if k+by < 0 || k+by >= layers {
				continue
			}
			var a, b []float32
			for r := range s.IDs {
				a = append(a, g.Row(got, r, k)...)
				b = append(b, g.Row(s.States, r, k+by)...)
			}
			if _, _, err := compare(a, b, g.Hidden); err == nil {
				t.Errorf("%s for k %d: passes", name, k)
			}
		}
	}
}

// samples makes n samples of lengths that straddle the blocks.
func samples(vocab int, lengths ...int) [][]uint32 {
	var out [][]uint32
	x := uint32(12345)
	for _, n := range lengths {
		s := make([]uint32, n)
		for i := range s {
			x = x*1664525 + 1013904223
			s[i] = x >> 8 % uint32(vocab)
		}
		out = append(out, s)
	}
	return out
}

// TestSameBytes holds results to the same bytes whatever the company of a
// sample, the threads, the budgets and, for fp32, the kernels.
func TestSameBytes(t *testing.T) {
	for _, name := range []string{"qwen3", "mistral-window", "llama-biases"} {
		path, _, o := goldenModel(t, name)
		all := samples(60, 1, 31, 257, 96, 600, 12)
		families := []string{""} // fp32
		for _, f := range kernel.BF16s() {
			families = append(families, f.Name())
		}
		for _, family := range families {
			compute := "bf16"
			if family == "" {
				compute = "fp32"
			}
			o.Compute, o.BF16, o.Threads, o.BatchTokens = compute, family, 1, 1
			want := serve(t, path, o, all...)
			check := func(what string, o Options) {
				t.Helper()
				for i, got := range serve(t, path, o, all...) {
					if !bytes.Equal(got, want[i]) {
						t.Errorf("%s %s %s %s: sample %d of %d tokens differs", name, compute, family, what, i, len(all[i]))
					}
				}
			}
			v := o
			v.Threads, v.BatchTokens = 3, 4096
			check("3 threads, one batch", v)
			v.Threads, v.BatchTokens = 2, 300
			check("2 threads, small batches", v)
			if family == "" || family == "fma" {
				for _, s := range kernel.Sets() {
					if v.Kernels = s.Name(); v.Kernels != "generic" || name == "qwen3" { // it is slow
						check("kernels "+s.Name(), v)
					}
				}
			}
			prefix := serve(t, path, o, all[4][:300])[0]
			if !bytes.Equal(prefix, want[4][:len(prefix)]) {
				t.Errorf("%s %s %s: the rows of a prefix differ", name, compute, family)
			}
		}
	}
}

// TestBF16 bounds what rounding the operands costs.
func TestBF16(t *testing.T) {
	path, g, o := goldenModel(t, "tiny-llama")
	o.Compute = "bf16"
	for _, f := range kernel.BF16s() {
		o.BF16 = f.Name()
		for i, got := range serve(t, path, o, ids(g)...) {
			cosine, rel, _ := compare(floats(got), g.Samples[i].States, g.Hidden)
			if cosine < 0.9995 || rel > 0.03 {
				t.Errorf("%s: sample %d: cosine %.6f, relative error %.3g", f.Name(), i, cosine, rel)
			}
		}
	}
}

func TestDTypes(t *testing.T) {
	path, g, o := goldenModel(t, "qwen2")
	want := floats(serve(t, path, o, g.Samples[1].IDs)[0])
	for dtype, bound := range map[string]float64{"bf16": 1.0 / 256, "fp16": 1.0 / 2048} {
		o.DType = dtype
		got := serve(t, path, o, g.Samples[1].IDs)[0]
		if len(got) != 2*len(want) {
			t.Fatalf("%s: %d bytes for %d values", dtype, len(got), len(want))
		}
		for i, w := range want {
			v := widen(dtype, got[2*i:])
			if d := float64(v - w); d > bound*abs(w)+1e-6 || -d > bound*abs(w)+1e-6 {
				t.Fatalf("%s: value %d is %g, want %g", dtype, i, v, w)
			}
		}
	}
}

func abs(x float32) float64 { return float64(max(x, -x)) }

// TestRefused holds every model that is not supported to an error that names
// the reason.
func TestRefused(t *testing.T) {
	base := `"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":8,"num_hidden_layers":1,"vocab_size":4,"num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":64`
	tests := []struct{ name, json, want string }{
		{"family", `{"architectures":["FalconForCausalLM"],"model_type":"falcon","hidden_size":8,"num_hidden_layers":1,"vocab_size":4}`, "falcon"},
		{"activation", `{` + base + `,"hidden_act":"gelu"}`, "gelu"},
		{"unknown option", `{` + base + `,"logit_scale":2}`, "logit_scale"},
		{"quantised", `{` + base + `,"quantization_config":{"bits":4}}`, "quantization_config"},
		{"longrope", `{` + base + `,"rope_scaling":{"rope_type":"longrope","factor":2}}`, "longrope"},
		{"rope option", `{` + base + `,"rope_scaling":{"rope_type":"linear","factor":2,"mystery":1}}`, "mystery"},
		{"partial rotation", `{` + base + `,"partial_rotary_factor":0.5}`, "partial_rotary_factor"},
		{"layer types", `{` + base + `,"layer_types":["linear_attention"]}`, "linear_attention"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tc.json), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := New(dir, Options{Capture: []int{1}})
			if !errors.Is(err, model.ErrUnsupported) || !bytes.Contains([]byte(err.Error()), []byte(tc.want)) {
				t.Fatalf("error %v, want one that names %q", err, tc.want)
			}
		})
	}
	path, err := fixtures.Copy(t.TempDir(), "models/kimi-k2.5-tiny")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(path, Options{Capture: []int{1}}); !errors.Is(err, model.ErrUnsupported) {
		t.Fatalf("kimi: %v", err)
	}
}

func TestOptions(t *testing.T) {
	path, _, _ := goldenModel(t, "qwen2")
	for name, o := range map[string]Options{
		"no layers":     {},
		"descending":    {Capture: []int{2, 1}},
		"twice":         {Capture: []int{1, 1}},
		"beyond":        {Capture: []int{5}},
		"dtype":         {Capture: []int{1}, DType: "fp8"},
		"compute":       {Capture: []int{1}, Compute: "int8"},
		"kernels":       {Capture: []int{1}, Kernels: "abacus"},
		"bf16 products": {Capture: []int{1}, Compute: "bf16", BF16: "abacus"},
		"memory":        {Capture: []int{1}, Memory: 1000},
	} {
		if b, err := New(path, o); err == nil {
			t.Errorf("%s: no error", name)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestMemoryBound: a sample beyond the memory is refused alone, with its bound.
func TestMemoryBound(t *testing.T) {
	path, _, _ := goldenModel(t, "qwen2")
	o := Options{Capture: []int{1, 4}, Threads: 1}
	b, err := New(path, o)
	if err != nil {
		t.Fatal(err)
	}
	n := b.Need()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	o.Memory = n.Memory(129) / 2
	if b, err = New(path, o); err != nil || b.Need().MaxTokens < 129 {
		t.Fatalf("%+v with the memory that 129 tokens are said to take: %v", b.Need(), err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	o.Memory = n.Fixed + 128*n.Token
	if b, err = New(path, o); err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	in := make(chan backend.Request, 3)
	for i, s := range samples(100, 128, 129, 50) {
		in <- backend.Request{ID: uint64(i), Tokens: s}
	}
	close(in)
	var done, refused []uint64
	err = b.Serve(t.Context(), 0, in, func(c backend.Chunk) error {
		var bad *backend.SampleError
		switch {
		case errors.As(c.Err, &bad) && bad.Code == "too_long" && bad.Permanent:
			refused = append(refused, c.ID)
			if want := "raise extract.memory to " + human.Bytes(n.Memory(129)); !strings.Contains(bad.Error(), want) {
				t.Errorf("error %q does not say %q", bad, want)
			}
		case c.Err != nil:
			return c.Err
		case c.First == 0:
			done = append(done, c.ID)
		}
		return nil
	})
	slices.Sort(done)
	if err != nil || !slices.Equal(done, []uint64{0, 2}) || !slices.Equal(refused, []uint64{1}) {
		t.Fatalf("done %v, refused %v, %v", done, refused, err)
	}
}

// TestNeed holds the stated memory to the buffers that are really made.
func TestNeed(t *testing.T) {
	for _, compute := range []string{"fp32", "bf16"} {
		path, _, o := goldenModel(t, "qwen3")
		o.Compute, o.Threads = compute, 2
		b, err := New(path, o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		e := b.newEngine()
		var bt batch
		for _, s := range samples(100, 1, 1000, 33, 5) {
			bt.add(backend.Request{Tokens: s})
		}
		bt.out = make([]byte, bt.rows*b.rowBytes())
		if err := e.forward(t.Context(), &bt); err != nil {
			t.Fatal(err)
		}
		total := 2 * len(bt.out)
		count := func(f []float32, h []uint16) { total += 4*cap(f) + 2*cap(h) }
		count(e.layer.f, e.layer.h)
		for _, x := range [][]float32{e.x, e.q, e.kv, e.table.cos, e.table.sin, e.keys.f, e.values.f} {
			count(x, nil)
		}
		count(nil, e.keys.h)
		count(nil, e.values.h)
		for _, w := range e.workers {
			for _, x := range [][]float32{w.norm, w.wide, w.out, w.rows, w.qt, w.score, w.acc, w.operand.f, w.inner.f, w.scores.f} {
				count(x, nil)
			}
			count(nil, w.operand.h)
			count(nil, w.inner.h)
			count(nil, w.scores.h)
			total += 12 * len(w.state)
		}
		n := b.Need()
		if need := n.Fixed + n.Token*int64(bt.keys); int64(total) > need || int64(total) < need*3/4 {
			t.Errorf("%s: %d bytes are stated, %d are used", compute, need, total)
		}
	}
}
