package native

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"eaglebatch/extract/model"
	"eaglebatch/extract/model/tensor"
	"eaglebatch/fixtures"
)

// The reference: the same models in float64, written to be read. It shares
// with the engine only the weights and the rope frequencies, which the goldens
// check.

func refMatrix(m tensor.Matrix, source func(int) int) [][]float32 {
	out := make([][]float32, m.Rows)
	for i := range out {
		r := i
		if source != nil {
			r = source(i)
		}
		out[i] = make([]float32, m.Cols)
		m.Row(r, out[i])
	}
	return out
}

func refLinear(w [][]float32, bias []float32, x []float64) []float64 {
	y := make([]float64, len(w))
	for i, row := range w {
		for j, v := range row {
			y[i] += float64(v) * x[j]
		}
		if bias != nil {
			y[i] += float64(bias[i])
		}
	}
	return y
}

func refNorm(x []float64, w []float32, eps float64) []float64 {
	ss := 0.0
	for _, v := range x {
		ss += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(ss/float64(len(x))+eps) * float64(w[i])
	}
	return y
}

func refRotate(x []float64, freq []float32, factor float32, pos int) {
	for i, f := range freq {
		s, c := math.Sincos(float64(pos) * float64(f))
		s, c = s*float64(factor), c*float64(factor)
		a, b := x[i], x[i+len(freq)]
		x[i], x[i+len(freq)] = a*c-b*s, b*c+a*s
	}
}

// reference returns the states [token][layer] of one sample.
func reference(d *model.Decoder, ids []uint32) [][][]float64 {
	n, hd, group := len(ids), d.HeadDim, d.Heads/d.KVHeads
	freq, factor := d.Rope.Frequencies(hd, n)
	out, x := make([][][]float64, n), make([][]float64, n)
	embed := refMatrix(d.Embed, nil)
	save := func() {
		for t := range x {
			out[t] = append(out[t], append([]float64(nil), x[t]...))
		}
	}
	for t, id := range ids {
		for _, v := range embed[id] {
			x[t] = append(x[t], float64(v))
		}
	}
	save()
	for l, b := range d.Blocks {
		wq, wk, wv := refMatrix(b.Q, d.SourceRow), refMatrix(b.K, d.SourceRow), refMatrix(b.V, nil)
		q, k, v := make([][]float64, n), make([][]float64, n), make([][]float64, n)
		for t := range x {
			y := refNorm(x[t], b.AttnNorm, d.Eps)
			q[t], k[t], v[t] = refLinear(wq, b.QBias, y), refLinear(wk, b.KBias, y), refLinear(wv, b.VBias, y)
			for _, part := range []struct {
				x    []float64
				norm []float32
			}{{q[t], b.QNorm}, {k[t], b.KNorm}} {
				for h := 0; h < len(part.x); h += hd {
					head := part.x[h : h+hd]
					if part.norm != nil {
						copy(head, refNorm(head, part.norm, d.Eps))
					}
					refRotate(head, freq, factor, t)
				}
			}
		}
		wo := refMatrix(b.O, nil)
		for t := range x {
			att := make([]float64, 0, d.Heads*hd)
			for h := range d.Heads {
				att = append(att, refHead(q[t][h*hd:][:hd], k, v, h/group*hd, t, d.Windows[l])...)
			}
			for i, y := range refLinear(wo, b.OBias, att) {
				x[t][i] += y
			}
		}
		refMLP(d, b, x)
		save()
	}
	return out
}

func refHead(q []float64, k, v [][]float64, at, t, window int) []float64 {
	first := 0
	if window > 0 {
		first = max(0, t-window+1)
	}
	out, sum := make([]float64, len(q)), 0.0
	for j := first; j <= t; j++ {
		s := 0.0
		for i, a := range q {
			s += a * k[j][at+i]
		}
		e := math.Exp(s / math.Sqrt(float64(len(q))))
		sum += e
		for i := range out {
			out[i] += e * v[j][at+i]
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

func refMLP(d *model.Decoder, b model.Block, x [][]float64) {
	gate, up, down := refMatrix(b.Gate, nil), refMatrix(b.Up, nil), refMatrix(b.Down, nil)
	for t := range x {
		y := refNorm(x[t], b.MLPNorm, d.Eps)
		g, u := refLinear(gate, b.GateBias, y), refLinear(up, b.UpBias, y)
		for i := range g {
			g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
		}
		for i, v := range refLinear(down, b.DBias, g) {
			x[t][i] += v
		}
	}
}

// TestReference compares samples that cross blocks of queries and keys, which
// the goldens are too short for, with the reference.
func TestReference(t *testing.T) {
	for _, name := range []string{"qwen3", "mistral-window", "llama-biases", "llama-dynamic", "gguf/qwen2-Q8_0.gguf", "gguf/llama-Q6_K.gguf"} {
		t.Run(name, func(t *testing.T) {
			path, err := fixtures.Copy(t.TempDir(), "models/"+name)
			if err != nil {
				t.Fatal(err)
			}
			d, err := model.OpenDecoder(path)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			o := Options{DType: "fp32"}
			for k := range d.Layers + 1 {
				o.Capture = append(o.Capture, k)
			}
			all := samples(60, 290, 33)
			for i, got := range serve(t, path, o, all...) {
				var want []float32
				for _, layers := range reference(d, all[i]) {
					for _, row := range layers {
						for _, v := range row {
							want = append(want, float32(v))
						}
					}
				}
				if _, _, err := compare(floats(got), want, d.Hidden); err != nil {
					t.Errorf("sample of %d tokens: %v", len(all[i]), err)
				}
			}
		})
	}
}

// TestRealModel compares a real model's last layer with the reference, where
// its path is in EAGLEBATCH_TEST_MODEL.
func TestRealModel(t *testing.T) {
	path := os.Getenv("EAGLEBATCH_TEST_MODEL")
	if path == "" {
		t.Skip("EAGLEBATCH_TEST_MODEL names no model")
	}
	d, err := model.OpenDecoder(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	all := samples(d.Vocab, 20)
	got := floats(serve(t, path, Options{Capture: []int{1, d.Layers}, DType: "fp32"}, all...)[0])
	var want []float32
	for _, layers := range reference(d, all[0]) {
		for _, k := range []int{1, d.Layers} {
			for _, v := range layers[k] {
				want = append(want, float32(v))
			}
		}
	}
	if _, _, err := compare(got, want, d.Hidden); err != nil {
		t.Fatal(err)
	}
}

func TestDoctor(t *testing.T) {
	speeds, err := Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]int{}
	for _, s := range speeds {
		if s.GFLOPS <= 0 || s.Name == "" {
			t.Errorf("%+v", s)
		}
		if s.Default {
			used[s.Compute]++
		}
	}
	if used["fp32"] != 1 || used["bf16"] != 1 {
		t.Errorf("defaults: %v", used)
	}
}
