package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// fp8Doc is what several reports say of errors.
type fp8Doc struct {
	Layer int
	Rows  int64
	Mean  float64 `json:"mean_error"`
	Max   float64 `json:"max_error"`
}

func (x fp8Doc) plausible() bool {
	return x.Rows > 0 && x.Mean > 0.001 && x.Mean <= x.Max && x.Max < 0.0625
}

func (r result) json(t *testing.T, doc any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.out), doc); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
}

// TestFP8 goes the whole way with lossy storage: planned, extracted, its errors
// reported by check, generations, stat and cat, compared with exact states, and
// never mixed with them.
func TestFP8(t *testing.T) {
	config, _ := quickstart(t)
	edit(t, config, "dtype: fp32", "dtype: fp8")
	edit(t, config, "{backend: native}", "{backend: synthetic, engine_dtype: fp32}")
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	first := statOf(t, config)
	if p := first.Plan; p.BytesPerTok != 4*(64+4) || p.RawBytes != p.BytesPerTok*first.Generations[len(first.Generations)-1].Tokens {
		t.Errorf("planned %d bytes a token, %d in all", p.BytesPerTok, p.RawBytes)
	}
	t.Run("check", func(t *testing.T) { checkFP8(t, config) })
	t.Run("cat", func(t *testing.T) {
		var d struct {
			DType  string
			Layers []struct {
				Norm         float64
				First        []float64
				Quantization fp8Doc
			}
		}
		eagle(t, "cat", "2:3", "--json", "-q", "-c", config).want(t, 0).json(t, &d)
		if d.DType != "fp8" || len(d.Layers) != 4 || !d.Layers[2].Quantization.plausible() || d.Layers[2].Norm == 0 || len(d.Layers[2].First) != 8 {
			t.Errorf("%+v", d)
		}
		if out := eagle(t, "cat", "2:3", "-q", "-c", config).want(t, 0).out; !strings.Contains(out, "fp8: mean row error up to") {
			t.Errorf("cat says nothing of errors:\n%s", out)
		}
	})
	t.Run("new seed", func(t *testing.T) {
		eagle(t, "run", "-q", "-c", config, "--seed", "7", "--redo", "shuffle").want(t, 0)
		if p := statOf(t, config).Plan; p.NewSamples != 0 || p.Reused != first.Plan.Samples {
			t.Errorf("%d new, %d reused", p.NewSamples, p.Reused)
		}
		eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
		edit(t, config, "seed: 42", "seed: 7")
	})
	t.Run("not mixed", func(t *testing.T) {
		for _, change := range [][]string{{"--dtype", "fp32"}, {"--set", "extract.engine_dtype=bf16", "--limit", "5"}} {
			eagle(t, append([]string{"run", "-q", "-c", config}, change...)...).want(t, 4).says(t, "dtype changed", "--redo plan")
			want := 0
			if len(change) > 2 {
				want = 5
			}
			eagle(t, append([]string{"run", "-q", "-c", config, "--redo", "plan"}, change...)...).want(t, want)
			if p := statOf(t, config).Plan; p.Reused != 0 || p.NewSamples == 0 {
				t.Errorf("%v: %d samples point to states of another precision", change, p.Reused)
			}
		}
	})
	t.Run("compare", func(t *testing.T) { compareFP8(t, config) })
}

func checkFP8(t *testing.T, config string) {
	type generation struct {
		Generation uint32
		Measured   bool
		Layers     []fp8Doc
	}
	for _, full := range []bool{false, true} {
		var d struct{ Quantization []generation }
		args := []string{"check", "--json", "-q", "-c", config}
		if full {
			args = append(args, "--full")
		}
		eagle(t, args...).want(t, 0).json(t, &d)
		if len(d.Quantization) != 1 || d.Quantization[0].Measured != full || len(d.Quantization[0].Layers) != 4 {
			t.Fatalf("full %t: %+v", full, d)
		}
		for _, x := range d.Quantization[0].Layers {
			if !x.plausible() {
				t.Errorf("%+v is not what fp8 costs", x)
			}
		}
	}
	if out := eagle(t, "check", "--full", "-q", "-c", config).want(t, 0).out; !strings.Contains(out, "is fp8, as recorded and as every blob says") || !strings.Contains(out, "layer 8: mean ") {
		t.Errorf("check says:\n%s", out)
	}
	for _, cmd := range []string{"generations", "stat"} {
		var d struct {
			Generations []struct{ Quantization []fp8Doc }
		}
		eagle(t, cmd, "--json", "-q", "-c", config).want(t, 0).json(t, &d)
		if g := d.Generations[len(d.Generations)-1]; len(g.Quantization) != 4 || !g.Quantization[0].plausible() {
			t.Errorf("%s: %+v", cmd, d)
		}
		if out := eagle(t, cmd, "-q", "-c", config).want(t, 0).out; !strings.Contains(out, "fp8: mean row error up to") {
			t.Errorf("%s says nothing of errors:\n%s", cmd, out)
		}
	}
}

// compareFP8: the distance to exact states is what was measured while writing.
func compareFP8(t *testing.T, config string) {
	var s struct {
		Generations []struct {
			ID           uint32
			Blobs        int64
			Quantization []fp8Doc
		}
	}
	eagle(t, "stat", "--json", "-q", "-c", config).want(t, 0).json(t, &s)
	var lossy, exact uint32
	var said []fp8Doc
	for _, g := range s.Generations {
		switch {
		case g.Quantization != nil && lossy == 0:
			lossy, said = g.ID, g.Quantization
		case g.Quantization == nil && g.Blobs > 0 && exact == 0:
			exact = g.ID
		}
	}
	var d struct {
		Verdict string
		Layers  []struct {
			Layer  int
			Rows   int64
			Cosine struct{ Min float64 }
			Error  struct{ Mean, Max float64 } `json:"relative_error"`
		}
	}
	eagle(t, "compare", fmt.Sprint(lossy), fmt.Sprint(exact), "--json", "-q", "-c", config).want(t, 0).json(t, &d)
	if len(d.Layers) != 4 {
		t.Fatalf("%+v", d)
	}
	for i, x := range d.Layers {
		// compare divides by the longer of the two rows, and repeated samples count twice.
		if w := said[i]; x.Layer != w.Layer || x.Rows < w.Rows || x.Error.Max > w.Max*1.001 || x.Error.Max < w.Max*0.9 || x.Error.Mean < w.Mean*0.95 || x.Error.Mean > w.Mean*1.05 || x.Cosine.Min < 0.995 {
			t.Errorf("compare %+v, measured while writing %+v", x, w)
		}
	}
}

// TestFP8ByDecision: a decision may ask for it, and the reports offer it.
func TestFP8ByDecision(t *testing.T) {
	config, _ := quickstart(t)
	edit(t, config, "{backend: native}", "{backend: synthetic}")
	for _, c := range []string{"merge", "shuffle", "plan"} {
		eagle(t, c, "-q", "-c", config).want(t, 0)
	}
	var d struct {
		WhatIf []struct {
			DType, Rows, Codec string
			Layers             []int
			RawBytes           int64 `json:"raw_bytes"`
			NewTokens          int64 `json:"new_tokens"`
		} `json:"what_if"`
	}
	eagle(t, "plan", "--what-if", "--json", "-q", "-c", config).want(t, 0).json(t, &d)
	offered := 0
	for _, r := range d.WhatIf {
		if r.DType == "fp8" && r.Rows == "all" {
			offered++
			if want := r.NewTokens * int64(len(r.Layers)) * (64 + 4); r.RawBytes != want {
				t.Errorf("%+v: want %d raw bytes", r, want)
			}
		}
	}
	if offered == 0 {
		t.Error("fp8 is not among the alternatives")
	}
	eagle(t, "plan", "-q", "-c", config, "--accept", "dtype=fp8").want(t, 0)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	if p := statOf(t, config).Plan; p.DType != "fp8" {
		t.Errorf("the plan has %s", p.DType)
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--set", "extract.engine_dtype=int8").want(t, 2).says(t, "extract.engine_dtype", "want one of bf16")
}
