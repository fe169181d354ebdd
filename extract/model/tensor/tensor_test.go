package tensor

import (
	"encoding/binary"
	"math"
	"testing"
)

// TestHalves holds both half formats to their definition, over all values.
func TestHalves(t *testing.T) {
	for u := range 1 << 16 {
		h := uint16(u)
		f := F16ToF32(h)
		exp, man := int(h>>10)&31, float64(h&1023)
		want := math.Ldexp(1024+man, exp-25)
		switch exp {
		case 0:
			want = math.Ldexp(man, -24)
		case 31:
			want = math.Inf(1)
			if man != 0 {
				want = math.NaN()
			}
		}
		if h>>15 == 1 {
			want = -want
		}
		if float64(f) != want && !(math.IsNaN(want) && f != f) {
			t.Fatalf("f16 %#04x is %g, want %g", h, f, want)
		}
		if back := F32ToF16(f); back != h && f == f {
			t.Fatalf("f16 %#04x comes back as %#04x", h, back)
		}
		b := BF16ToF32(h)
		if back := F32ToBF16(b); back != h && b == b {
			t.Fatalf("bf16 %#04x comes back as %#04x", h, back)
		}
		if b != b && BF16ToF32(F32ToBF16(b)) == BF16ToF32(F32ToBF16(b)) {
			t.Fatalf("bf16 NaN %#04x becomes a number", h)
		}
	}
}

// TestRounding walks float32 values between neighbouring halves: the nearer one
// must win, and the even one at the middle.
func TestRounding(t *testing.T) {
	for u := range 0x7bff {
		lo, hi := F16ToF32(uint16(u)), F16ToF32(uint16(u)+1)
		mid := lo + (hi-lo)/2
		even := uint16(u)
		if even&1 == 1 {
			even++
		}
		for f, want := range map[float32]uint16{
			mid:                                    even,
			math.Nextafter32(mid, 0):               uint16(u),
			math.Nextafter32(mid, math.MaxFloat32): uint16(u) + 1,
		} {
			if got := F32ToF16(f); got != want {
				t.Fatalf("%g rounds to %#04x, want %#04x", f, got, want)
			}
		}
	}
	for u := range 0x7f7f {
		lo, hi := BF16ToF32(uint16(u)), BF16ToF32(uint16(u)+1)
		if math.IsInf(float64(hi), 0) {
			continue
		}
		mid := math.Float32frombits(uint32(u)<<16 | 0x8000)
		even := uint16(u) + uint16(u)&1
		if got := F32ToBF16(mid); got != even {
			t.Fatalf("%g, between %g and %g, rounds to %#04x, want %#04x", mid, lo, hi, got, even)
		}
	}
	if F32ToF16(65520) != 0x7c00 || F32ToF16(65519) != 0x7bff || F32ToF16(1e-8) != 0 {
		t.Fatal("the ends of the range round wrongly")
	}
}

func TestSize(t *testing.T) {
	tests := []struct {
		t     Type
		shape []int
		want  int
		bad   bool
	}{
		{t: F32, shape: []int{3, 4}, want: 48},
		{t: BF16, shape: nil, want: 2},
		{t: F16, shape: []int{0, 7}, want: 0},
		{t: Q8_0, shape: []int{2, 64}, want: 2 * 2 * 34},
		{t: Q4_K, shape: []int{1, 256}, want: 144},
		{t: Q6_K, shape: []int{1, 128}, bad: true},
		{t: "F8_E4M3", shape: []int{1}, bad: true},
		{t: F32, shape: []int{-1}, bad: true},
		{t: F32, shape: []int{math.MaxInt / 2, 8}, bad: true},
	}
	for _, tc := range tests {
		got, err := Size(tc.t, tc.shape)
		if got != tc.want || (err != nil) != tc.bad {
			t.Errorf("%s %v: %d, %v", tc.t, tc.shape, got, err)
		}
	}
}

func TestMatrixRefusesShortData(t *testing.T) {
	if _, err := (Tensor{Name: "x", Type: F32, Shape: []int{2, 2}, Data: make([]byte, 15)}).Matrix(); err == nil {
		t.Fatal("no error")
	}
}

// FuzzDecode: no bytes make decoding read or write outside, or change with
// where a block lies.
func FuzzDecode(f *testing.F) {
	for i, t := range []Type{Q8_0, Q4_0, Q4_1, Q4_K, Q6_K, F16, BF16, F32, Q5_0, Q5_1, Q5_K} {
		f.Add(uint8(i), []byte("0123456789abcdef0123456789abcdef0123456789abcdef"+string(t)))
	}
	f.Fuzz(func(t *testing.T, kind uint8, seed []byte) {
		typ := []Type{Q8_0, Q4_0, Q4_1, Q4_K, Q6_K, F16, BF16, F32, Q5_0, Q5_1, Q5_K}[kind%11]
		values, bytes := typ.Block()
		src := make([]byte, 2*bytes)
		for i := range src {
			if len(seed) > 0 {
				src[i] = seed[i%len(seed)]
			}
		}
		copy(src[bytes:], src[:bytes])
		dst := make([]float32, 2*values)
		Decode(typ, src, dst)
		for i := range values {
			if math.Float32bits(dst[i]) != math.Float32bits(dst[values+i]) && dst[i] == dst[i] {
				t.Fatalf("%s: the same block decodes differently at %d", typ, i)
			}
		}
		if typ == Q8_0 && dst[0] != float32(int8(src[2]))*F16ToF32(binary.LittleEndian.Uint16(src)) && dst[0] == dst[0] {
			t.Fatalf("q8_0: %g", dst[0])
		}
	})
}
