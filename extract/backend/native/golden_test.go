package native

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"eaglebatch/extract/model/tensor"
	"eaglebatch/fixtures"
)

// compare holds rows to the reference: cosine at least 0.99999 and relative
// error at most 1e-4, every row. It returns the worst of both.
func compare(got, want []float32, hidden int) (cosine, rel float64, err error) {
	cosine = 1
	if len(got) != len(want) {
		return 0, 0, fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for r := 0; r < len(want); r += hidden {
		var gw, gg, ww, dd float64
		for i := r; i < r+hidden; i++ {
			g, w := float64(got[i]), float64(want[i])
			gw, gg, ww, dd = gw+g*w, gg+g*g, ww+w*w, dd+(g-w)*(g-w)
		}
		c, e := gw/math.Sqrt(gg*ww), math.Sqrt(dd/ww)
		if !(c >= 0.99999 && e <= 1e-4) && err == nil {
			err = fmt.Errorf("row %d: cosine %.7f, relative error %.3g", r/hidden, c, e)
		}
		cosine, rel = min(cosine, c), max(rel, e)
	}
	return cosine, rel, err
}

func goldenModel(t *testing.T, name string) (string, *fixtures.Golden, Options) {
	t.Helper()
	path, err := fixtures.Copy(t.TempDir(), "models/"+name)
	if err != nil {
		t.Fatal(err)
	}
	g, err := fixtures.LoadGolden(fixtures.GoldenName(name))
	if err != nil {
		t.Fatal(err)
	}
	return path, g, Options{Capture: g.Layers, DType: "fp32"}
}

func ids(g *fixtures.Golden) [][]uint32 {
	var out [][]uint32
	for _, s := range g.Samples {
		out = append(out, s.IDs)
	}
	return out
}

// TestGoldens compares every layer of every row with transformers.
func TestGoldens(t *testing.T) {
	models, err := fixtures.Models()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range models {
		if strings.HasPrefix(name, "kimi") {
			continue // not of this engine: TestRefused
		}
		tried++
		t.Run(name, func(t *testing.T) {
			path, g, o := goldenModel(t, name)
			for i, got := range serve(t, path, o, ids(g)...) {
				cosine, rel, err := compare(floats(got), g.Samples[i].States, g.Hidden)
				if err != nil {
					t.Errorf("sample %d: %v", i, err)
				}
				t.Logf("sample %d of %d tokens: worst cosine %.8f, worst relative error %.2g", i, len(g.Samples[i].IDs), cosine, rel)
			}
		})
	}
	if tried < 15 {
		t.Fatalf("only %d models", tried)
	}
}

func widen(dtype string, b []byte) float32 {
	h := binary.LittleEndian.Uint16(b)
	if dtype == "fp16" {
		return tensor.F16ToF32(h)
	}
	return tensor.BF16ToF32(h)
}
