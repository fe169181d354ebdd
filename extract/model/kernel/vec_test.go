package kernel

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// awkward makes n values, some of them the ones that break kernels.
func awkward(r *rand.Rand, n int) []float32 {
	odd := []float32{0, float32(math.Copysign(0, -1)), 1e-42, -1e-42, 1e-38, 88.5, -87.5, -104, 200, -200, 3e38, -3e38, 0.5, 1}
	x := random(r, n)
	for i := range x {
		if r.IntN(5) == 0 {
			x[i] = odd[r.IntN(len(odd))]
		}
	}
	return x
}

func same(t *testing.T, set, op string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s %s: value %d of %d is %g (%#x), generic gives %g (%#x)", set, op, i, len(want),
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

// TestVectorOps holds every set to the bytes of the generic one.
func TestVectorOps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	gen := Generic()
	for _, s := range Sets() {
		for _, n := range []int{1, 4, 15, 16, 17, 32, 48, 64, 100, 256, 576} {
			for range 20 {
				a, b, c, d := awkward(r, n), awkward(r, n), awkward(r, n), awkward(r, n)
				both := func(op string, f func(s *Set, x, y []float32)) {
					t.Helper()
					x1, y1, x2, y2 := clone(a), clone(b), clone(a), clone(b)
					f(s, x1, y1)
					f(gen, x2, y2)
					same(t, s.Name(), op, x1, x2)
					same(t, s.Name(), op, y1, y2)
				}
				both("silu", func(s *Set, x, y []float32) { s.SiLUMul(x, y) })
				both("add", func(s *Set, x, y []float32) { s.Add(x, y) })
				both("scale", func(s *Set, x, y []float32) { s.Scale(x, 0.3) })
				both("norm", func(s *Set, x, y []float32) { s.RMSNorm(x, x, y, n, 1e-5) })
				both("rotate", func(s *Set, x, y []float32) { s.Rotate(x, y, c, d) })
				both("softmax", func(s *Set, x, y []float32) {
					st := SoftmaxState{Max: NoMax}
					s.Softmax(x, 0.125, &st)
					s.Softmax(y, 0.125, &st)
					y[0], x[0] = st.Sum, st.Alpha
				})
				both("round", func(s *Set, x, y []float32) {
					x[0], x[n/2] = float32(math.NaN()), float32(math.Inf(-1))
					s.RoundBF16(y, x)
					h := make([]uint16, n)
					s.ToBF16(h, x)
					for i, v := range h {
						if math.Float32bits(y[i]) != uint32(v)<<16 {
							t.Fatalf("%s round: %g gives %g, ToBF16 gives %#x", s.Name(), x[i], y[i], v)
						}
					}
				})
				both("bf16", func(s *Set, x, y []float32) {
					h := make([]uint16, n)
					s.ToBF16(h, x)
					raw := make([]byte, 2*n)
					for i, v := range h {
						binary.LittleEndian.PutUint16(raw[2*i:], v)
					}
					s.FromBF16(y, raw)
				})
			}
		}
	}
}

// TestPack holds packing to the generic order.
func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, s := range Sets() {
		for _, k := range []int{4, 16, 64, 272, 576, 1000} {
			for _, missing := range []int{-1, 7, 31} {
				var rows [Panel][]float32
				for j := range rows {
					if j != missing {
						rows[j] = random(r, k)
					}
				}
				got, want := make([]float32, PackedLen(64, k)), make([]float32, PackedLen(64, k))
				s.PackPanel(got, &rows, 32, 64, k)
				Generic().PackPanel(want, &rows, 32, 64, k)
				same(t, s.Name(), "pack", got, want)
			}
		}
	}
}

// TestExp bounds the error of exp over its range.
func TestExp(t *testing.T) {
	for x := float32(-86.9); x < 88.3; x += 0.00137 {
		want := math.Exp(float64(x))
		if e := math.Abs(float64(Exp(x))/want - 1); e > 2.4e-7 {
			t.Fatalf("exp(%g) is %g, want %g", x, Exp(x), want)
		}
	}
	if Exp(0) != 1 || Exp(-100) != 0 || Exp(float32(math.Inf(-1))) != 0 || Exp(float32(math.NaN())) == Exp(float32(math.NaN())) {
		t.Fatal("a special value is wrong")
	}
}
