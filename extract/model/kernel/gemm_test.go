package kernel

import (
	"math"
	"math/rand/v2"
	"testing"
)

func random(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// packed packs n rows of k values, padded.
func packed(s *Set, w []float32, n, k int) []float32 {
	np, kp := Up(n, Panel), Up(k, 4)
	out := make([]float32, np*kp)
	for p := 0; p < np; p += Panel {
		var rows [Panel][]float32
		for j := range rows {
			if p+j < n {
				rows[j] = append(append([]float32(nil), w[(p+j)*k:][:k]...), make([]float32, kp-k)...)
			}
		}
		s.PackPanel(out, &rows, p, np, kp)
	}
	return out
}

// TestGemm holds every set to the exact sum within the bound of a float32 sum,
// and all sets to the same bytes.
func TestGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []struct{ m, n, k int }{{12, 32, 4}, {12, 64, 8}, {24, 32, 256}, {36, 96, 260}, {12, 96, 576}, {60, 160, 1536}, {24, 544, 772}} {
		lda, ldc := d.k+r.IntN(20), d.n+r.IntN(20)
		a, w, c0 := random(r, d.m*lda), random(r, d.n*d.k), random(r, d.m*ldc)
		for _, acc := range []bool{false, true} {
			var first []float32
			for _, s := range Sets() {
				b := packed(s, w, d.n, d.k)
				c := append([]float32(nil), c0...)
				s.Gemm(c, ldc, a, lda, b, d.m, d.n, d.k, acc)
				if first == nil {
					first = c
				}
				for i := range c {
					if math.Float32bits(c[i]) != math.Float32bits(first[i]) {
						t.Fatalf("%v acc %v: %s and %s differ at %d: %g, %g", d, acc, s.Name(), Best().Name(), i, c[i], first[i])
					}
				}
				checkGemm(t, d.m, d.n, d.k, a, lda, w, c, c0, ldc, acc)
			}
		}
	}
}

func checkGemm(t *testing.T, m, n, k int, a []float32, lda int, w, c, c0 []float32, ldc int, acc bool) {
	t.Helper()
	for i := range m {
		for j := range ldc {
			if i*ldc+j >= len(c) {
				continue
			}
			want, size := 0.0, 0.0
			if j >= n {
				want = float64(c0[i*ldc+j])
			} else {
				for q := range k {
					p := float64(a[i*lda+q]) * float64(w[j*k+q])
					want += p
					size += math.Abs(p)
				}
				if acc {
					want += float64(c0[i*ldc+j])
				}
			}
			if diff := math.Abs(float64(c[i*ldc+j]) - want); diff > 1e-6*(size+1) {
				t.Fatalf("row %d column %d is %g, want %g", i, j, c[i*ldc+j], want)
			}
		}
	}
}

func TestFMA32(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200000 {
		x, y, z := float32(r.NormFloat64()), float32(r.NormFloat64()), float32(r.NormFloat64()*math.Exp2(float64(r.IntN(60)-40)))
		if r.IntN(4) == 0 { // make the sum cancel
			z = -float32(x * y)
		}
		// 120 bits are enough for a sum of a 48-bit product and z here.
		want := bigFMA(x, y, z)
		if got := fma32(x, y, z); got != want {
			t.Fatalf("fma32(%b, %b, %b) = %b, want %b", x, y, z, got, want)
		}
	}
}
