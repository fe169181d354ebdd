package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestBF16Gemm holds the families to the exact sum of the rounded operands
// within the bound of a float32 sum.
func TestBF16Gemm(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	set := Best()
	for _, b := range BF16s() {
		if !b.Half() {
			continue // a Set's products: TestGemm
		}
		for _, d := range []struct{ m, n, k int }{{1, 32, 32}, {12, 64, 64}, {33, 32, 96}, {96, 96, 256}, {100, 160, 1536}, {12, 544, 416}} {
			lda, ldc, rows := d.k+2*r.IntN(20), d.n+r.IntN(20), Up(d.m, 96)
			a, w, c0 := random(r, rows*lda), random(r, d.n*d.k), random(r, rows*ldc)
			ah := make([]uint16, len(a))
			set.ToBF16(ah, a)
			p := make([]uint16, d.n*d.k)
			for col := 0; col < d.n; col += Panel {
				var buf [Panel][]float32
				for j := range buf {
					buf[j] = make([]float32, d.k/2)
					set.ToBF16(Words(buf[j], d.k), w[(col+j)*d.k:][:d.k])
				}
				b.PackPanel(p, &buf, col, d.k)
			}
			for i, h := range ah {
				a[i] = math.Float32frombits(uint32(h) << 16)
			}
			for i, v := range w {
				var h [1]uint16
				set.ToBF16(h[:], []float32{v})
				w[i] = math.Float32frombits(uint32(h[0]) << 16)
			}
			for _, acc := range []bool{false, true} {
				c := clone(c0)
				b.Gemm(c, ldc, ah, lda, p, d.m, d.n, d.k, acc)
				checkGemm(t, d.m, d.n, d.k, a, lda, w, c[:d.m*ldc], c0, ldc, acc)
			}
		}
	}
}

// TestBF16Pairs holds pairing to the rounding of ToBF16.
func TestBF16Pairs(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, b := range BF16s() {
		if !b.Half() {
			continue
		}
		for range 100 {
			x, y := awkward(r, Panel), awkward(r, Panel)
			x[3], y[5] = float32(math.NaN()), float32(math.Inf(1))
			hx, hy, got := make([]uint16, Panel), make([]uint16, Panel), make([]uint16, 2*Panel)
			toBF16Generic(hx, x)
			toBF16Generic(hy, y)
			b.PackPairs(got, x, y)
			for j := range Panel {
				if got[2*j] != hx[j] || got[2*j+1] != hy[j] {
					t.Fatalf("%s: column %d of (%g, %g) is %#x, %#x, want %#x, %#x", b.Name(), j, x[j], y[j], got[2*j], got[2*j+1], hx[j], hy[j])
				}
			}
		}
	}
}
