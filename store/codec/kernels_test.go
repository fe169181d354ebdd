package codec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestKernelForms holds every form of the kernels that this machine can run to
// the portable one: same bytes for all lengths and alignments, and not a byte
// beside them.
func TestKernelForms(t *testing.T) {
	want := portableKernels()
	for _, k := range kernelForms() {
		t.Run(k.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			for n := range 700 {
				checkKernels(t, r, want, k, n, n%67)
			}
			for range 50 {
				checkKernels(t, r, want, k, r.IntN(20_000), r.IntN(64))
			}
		})
	}
}

func checkKernels(t *testing.T, r *rand.Rand, want, k kernels, n, offset int) {
	t.Helper()
	random := func(n int) []byte {
		b := make([]byte, offset+n)[offset:]
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	values, top, low, planes := random(2*n), random(n), random(n), random(8*planeSize(n))
	l := []layout{{}, {expShift: 3}, {expShift: 4}}[r.IntN(3)]
	mask := l.expMask()
	base := byte(r.Uint32()) & mask
	same(t, fmt.Sprintf("split %d+%d", n, offset), offset, 2*n, func(k kernels, dst []byte) {
		k.split(dst[:n], dst[n:], values)
	}, want, k)
	same(t, fmt.Sprintf("join %d+%d", n, offset), offset, 2*n, func(k kernels, dst []byte) {
		k.join(dst, top, low)
	}, want, k)
	same(t, fmt.Sprintf("plane %d+%d mask %#x base %#x", n, offset, mask, base), offset, 8*planeSize(n), func(k kernels, dst []byte) {
		k.plane(dst, top, mask, base)
	}, want, k)
	same(t, fmt.Sprintf("unplane %d+%d mask %#x base %#x", n, offset, mask, base), offset, n, func(k kernels, dst []byte) {
		k.unplane(dst, planes, mask, base)
	}, want, k)
}

// same runs f with both kernels on n bytes amid others and compares it all.
func same(t *testing.T, what string, offset, n int, f func(k kernels, dst []byte), want, got kernels) {
	t.Helper()
	run := func(k kernels) []byte {
		b := bytes.Repeat([]byte{0xa5}, offset+n+128)
		f(k, b[offset:offset+n])
		return b
	}
	if a, b := run(want), run(got); !bytes.Equal(a, b) {
		for i := range a {
			if a[i] != b[i] {
				t.Fatalf("%s: %s has %#x at byte %d of %d, want %#x", what, got.name, b[i], i-offset, n, a[i])
			}
		}
	}
}

// TestFold shows that folding is undone, and small where the exponent is near.
func TestFold(t *testing.T) {
	for _, shift := range []uint{0, 3, 4} {
		mask := layout{expShift: shift}.expMask()
		for base := 0; base < 256; base += 1 << shift {
			for v := range 256 {
				f := fold(byte(v), mask, byte(base))
				if got := unfold(f, mask, byte(base)); got != byte(v) {
					t.Fatalf("mask %#x base %#x: %#x came back as %#x", mask, base, v, got)
				}
			}
			if f := fold(byte(base), mask, byte(base)); f != 0 {
				t.Fatalf("mask %#x base %#x folds to %#x", mask, base, f)
			}
		}
	}
}
