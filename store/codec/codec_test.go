package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

var dtypes = []string{"bf16", "fp16", "fp32", "fp8"}

func allCodecs() []ID { return []ID{Raw, LZ4, Planes, Dense} }

func width(t testing.TB, dtype string) int {
	l, err := layoutOf(dtype)
	if err != nil {
		t.Fatal(err)
	}
	return l.width
}

// roundTrip encodes raw, decodes it again and returns the encoded size.
func roundTrip(t testing.TB, e *Encoder, d *Decoder, raw []byte) (int, ID) {
	t.Helper()
	prefix := []byte("prefix")
	in := bytes.Clone(raw)
	out, used, err := e.Encode(bytes.Clone(prefix), in)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in, raw) {
		t.Fatal("Encode changed its input")
	}
	if !bytes.HasPrefix(out, prefix) {
		t.Fatal("Encode did not append")
	}
	enc := out[len(prefix):]
	if len(enc) > len(raw) {
		t.Fatalf("%d bytes became %d", len(raw), len(enc))
	}
	guarded := bytes.Repeat([]byte{0xa5}, len(raw)+64)
	if err := d.Decode(guarded[:len(raw)], enc, used); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(guarded[:len(raw)], raw) {
		t.Fatalf("round trip as %v changed the bytes", used)
	}
	for _, b := range guarded[len(raw):] {
		if b != 0xa5 {
			t.Fatal("Decode wrote past dst")
		}
	}
	return len(enc), used
}

func eachPair(t *testing.T, f func(t *testing.T, dtype string, e *Encoder, d *Decoder)) {
	for _, dtype := range dtypes {
		for _, c := range allCodecs() {
			t.Run(fmt.Sprintf("%s/%v", dtype, c), func(t *testing.T) {
				e, err := NewEncoder(c, dtype)
				if err != nil {
					t.Fatal(err)
				}
				d, err := NewDecoder(dtype)
				if err != nil {
					t.Fatal(err)
				}
				f(t, dtype, e, d)
			})
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range allCodecs() {
		got, err := Parse(c.String())
		if err != nil || got != c {
			t.Errorf("Parse(%q) = %v, %v", c.String(), got, err)
		}
	}
	if _, err := Parse("zip"); err == nil {
		t.Error("Parse took an unknown name")
	}
	if s := ID(9).String(); s != "codec-9" {
		t.Errorf("unknown codec prints as %q", s)
	}
	if _, err := NewEncoder(ID(9), "bf16"); err == nil {
		t.Error("NewEncoder took an unknown codec")
	}
	if _, err := NewEncoder(Raw, "int8"); err == nil {
		t.Error("NewEncoder took an unknown dtype")
	}
	if _, err := NewDecoder("int8"); err == nil {
		t.Error("NewDecoder took an unknown dtype")
	}
}

func TestRoundTripLengths(t *testing.T) {
	eachPair(t, func(t *testing.T, dtype string, e *Encoder, d *Decoder) {
		all := states(dtype, 700, 1)
		for n := 0; n <= 1200 && n <= len(all); n++ {
			roundTrip(t, e, d, all[:n])
		}
	})
}

func TestRoundTripShapes(t *testing.T) {
	eachPair(t, func(t *testing.T, dtype string, e *Encoder, d *Decoder) {
		for name, raw := range shapes(width(t, dtype)) {
			size, used := roundTrip(t, e, d, raw)
			if name == "random" && used != Raw {
				t.Errorf("random bytes were stored as %v", used)
			}
			if name == "zero" && e.codec != Raw && size > len(raw)/7 {
				t.Errorf("%d zero bytes became %d", len(raw), size)
			}
		}
	})
}

// shapes are byte patterns that strain one place or another.
func shapes(width int) map[string][]byte {
	const n = 40_000
	r := rand.New(rand.NewPCG(7, 7))
	random := make([]byte, n)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	every := make([]byte, 0, 2<<16) // each 16-bit pattern: NaNs, infinities, denormals
	for v := range 1 << 16 {
		every = binary.LittleEndian.AppendUint16(every, uint16(v))
	}
	specials := make([]byte, 0, n)
	for _, v := range []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, math.MaxFloat32, 1, -1} {
		for range n / 40 {
			specials = binary.LittleEndian.AppendUint32(specials, math.Float32bits(v))
		}
	}
	return map[string][]byte{
		"zero":      make([]byte, n),
		"ones":      bytes.Repeat([]byte{0xff}, n),
		"constant":  bytes.Repeat([]byte{0x12, 0x34, 0x56, 0x78}, n/4),
		"random":    random,
		"every":     every,
		"specials":  specials,
		"odd":       make([]byte, n+1),
		"one value": make([]byte, width),
	}
}

func TestRatios(t *testing.T) {
	tests := []struct {
		dtype string
		codec ID
		raw   []byte
		max   float64
	}{
		{"bf16", Planes, states("bf16", 1<<17, 3), 0.76},
		{"bf16", Dense, states("bf16", 1<<17, 3), 0.76},
		{"fp32", Planes, states("fp32", 1<<16, 3), 0.89},
		{"fp32", Planes, upcast(states("bf16", 1<<16, 3)), 0.40},
	}
	for _, tt := range tests {
		e, err := NewEncoder(tt.codec, tt.dtype)
		if err != nil {
			t.Fatal(err)
		}
		d, err := NewDecoder(tt.dtype)
		if err != nil {
			t.Fatal(err)
		}
		size, used := roundTrip(t, e, d, tt.raw)
		ratio := float64(size) / float64(len(tt.raw))
		t.Logf("%s %v: %.4f", tt.dtype, tt.codec, ratio)
		if used != tt.codec || ratio > tt.max {
			t.Errorf("%s as %v: stored as %v at ratio %.4f, want at most %.2f", tt.dtype, tt.codec, used, ratio, tt.max)
		}
	}
}

// TestHistory shows that an encoder's past does not change its bytes.
func TestHistory(t *testing.T) {
	eachPair(t, func(t *testing.T, dtype string, e *Encoder, _ *Decoder) {
		raw := states(dtype, 20_000, 5)
		first, _, err := e.Encode(nil, raw)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(5) {
			if _, _, err := e.Encode(nil, states(dtype, 30_000, 50+seed)); err != nil {
				t.Fatal(err)
			}
			again, _, err := e.Encode(make([]byte, 0, seed*10_000), raw)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(first, again) {
				t.Fatal("the same chunk encoded to other bytes")
			}
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	raw := states("bf16", 4096, 9)
	for _, c := range []ID{LZ4, Planes, Dense} {
		e, err := NewEncoder(c, "bf16")
		if err != nil {
			t.Fatal(err)
		}
		d, err := NewDecoder("bf16")
		if err != nil {
			t.Fatal(err)
		}
		in := raw
		if c == LZ4 {
			in = make([]byte, len(raw))
		}
		enc, used, err := e.Encode(nil, in)
		if err != nil || used != c {
			t.Fatal(used, err)
		}
		dst := make([]byte, len(in))
		for n := range enc {
			if err := d.Decode(dst, enc[:n], c); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v cut to %d of %d bytes: %v", c, n, len(enc), err)
			}
		}
		if err := d.Decode(dst, append(bytes.Clone(enc), 0), c); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%v with a spare byte: %v", c, err)
		}
		if err := d.Decode(dst[:len(dst)-1], enc, c); !errors.Is(err, ErrMalformed) {
			t.Fatalf("%v into an odd size: %v", c, err)
		}
	}
	d, err := NewDecoder("bf16")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []ID{Raw, 4, 255} {
		if err := d.Decode(make([]byte, 1000), make([]byte, 10), c); !errors.Is(err, ErrMalformed) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// TestFormatExample holds the encoder to the worked example of store/FORMAT.md.
func TestFormatExample(t *testing.T) {
	raw := bytes.Repeat([]byte{0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f, 0x00, 0x40}, 16)
	lens := make([]byte, 36)
	lens[4] = 8
	plane := bytes.Repeat([]byte{0x88}, 8)
	tests := map[ID][]byte{
		Planes: slices.Concat([]byte{0x7f}, lens, plane),
		Dense:  slices.Concat([]byte{0, 0, 0, 0, 0}, plane, []byte{1, 0x7f, 1, 0x80}),
	}
	for c, want := range tests {
		e, err := NewEncoder(c, "bf16")
		if err != nil {
			t.Fatal(err)
		}
		got, used, err := e.Encode(nil, raw)
		if err != nil || used != c {
			t.Fatal(used, err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v:\n got %x\nwant %x", c, got, want)
		}
	}
}

// TestSpareBits shows that bits after the last value of a plane are refused.
func TestSpareBits(t *testing.T) {
	for dtype, codecs := range map[string][]ID{"bf16": {Planes}, "fp16": {Planes, Dense}} {
		for _, c := range codecs {
			e, err := NewEncoder(c, dtype)
			if err != nil {
				t.Fatal(err)
			}
			d, err := NewDecoder(dtype)
			if err != nil {
				t.Fatal(err)
			}
			const n = 1001
			raw := states(dtype, n, 6)
			enc, used, err := e.Encode(nil, raw)
			if err != nil || used != c {
				t.Fatal(used, err)
			}
			l, err := layoutOf(dtype)
			if err != nil {
				t.Fatal(err)
			}
			at := 4 * l.plainSegments() // of plane 0, which is stored as it is
			if c == Planes {
				at = 1 + 4*l.segments()
			}
			enc[at+planeSize(n)-1] |= 0x80
			if err := d.Decode(make([]byte, len(raw)), enc, c); !errors.Is(err, ErrMalformed) {
				t.Errorf("%s %v: %v", dtype, c, err)
			}
		}
	}
}

// TestGolden pins the encoded bytes: they must be the same on every machine
// and from version to version, or a generation extracted twice would differ.
func TestGolden(t *testing.T) {
	want := map[string]uint32{
		"bf16/lz4":        0xa0a86076,
		"bf16/lz4-planes": 0xd3a009b5,
		"bf16/dense":      0x504b0e90,
		"fp16/lz4":        0xdf4c3f8f,
		"fp16/lz4-planes": 0xb387f044,
		"fp16/dense":      0xd463d167,
		"fp32/lz4":        0xde7c56e8,
		"fp32/lz4-planes": 0x0b445a8c,
		"fp32/dense":      0xcb978dd9,
		"fp8/lz4":         0x682057a8,
		"fp8/lz4-planes":  0xbef1b0bc,
		"fp8/dense":       0xf328f47d,
	}
	for _, dtype := range dtypes {
		for _, c := range []ID{LZ4, Planes, Dense} {
			name := fmt.Sprintf("%s/%v", dtype, c)
			for _, k := range kernelForms() {
				e, err := NewEncoder(c, dtype)
				if err != nil {
					t.Fatal(err)
				}
				e.k = k
				enc, _, err := e.Encode(nil, golden(dtype))
				if err != nil {
					t.Fatal(err)
				}
				if got := crc32.ChecksumIEEE(enc); got != want[name] {
					t.Errorf("%s with %s kernels: crc32 %#08x of %d bytes, want %#08x", name, k.name, got, len(enc), want[name])
				}
			}
		}
	}
}

// golden makes states from integers alone, so that no machine's floating point
// has a say in them: random mantissas below exponents with a geometric decline,
// and zeros.
func golden(dtype string) []byte {
	r := rand.New(rand.NewPCG(11, 13))
	var out []byte
	for i := range 30_003 {
		v := uint32(r.Uint64())
		exponent := 128 - uint32(bits.TrailingZeros64(r.Uint64())) - uint32(i%7/5)
		out = appendValue(out, dtype, math.Float32frombits(v&0x807fffff|exponent<<23))
	}
	return append(out, make([]byte, 20_000)...)
}
