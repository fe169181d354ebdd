package codec

import (
	"bytes"
	"errors"
	"testing"
)

// fuzzDecode looks for bytes that make a decoder panic, write past its room,
// or take for sound what it cannot give back.
func fuzzDecode(f *testing.F, c ID) {
	for i, dtype := range dtypes {
		for _, raw := range [][]byte{states(dtype, 300, 1), states(dtype, 1000, 2), make([]byte, 4096), make([]byte, 640)} {
			e, err := NewEncoder(c, dtype)
			if err != nil {
				f.Fatal(err)
			}
			enc, _, err := e.Encode(nil, raw)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(enc, uint8(i), uint16(len(raw)))
			f.Add(enc[:len(enc)/2], uint8(i), uint16(len(raw)))
		}
	}
	f.Fuzz(func(t *testing.T, enc []byte, dtype uint8, size uint16) {
		name := dtypes[int(dtype)%len(dtypes)]
		var outs [][]byte
		for _, k := range kernelForms() {
			d, err := NewDecoder(name)
			if err != nil {
				t.Fatal(err)
			}
			d.k = k
			buf := bytes.Repeat([]byte{0xa5}, int(size)+128)
			err = d.Decode(buf[:size], enc, c)
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Fatalf("error of another kind: %v", err)
			}
			if !bytes.Equal(buf[size:], bytes.Repeat([]byte{0xa5}, 128)) {
				t.Fatal("wrote past dst")
			}
			if err != nil {
				buf = nil
			}
			outs = append(outs, buf)
		}
		for i, o := range outs {
			if !bytes.Equal(o, outs[0]) {
				t.Fatalf("%s and %s differ", kernelForms()[i].name, kernelForms()[0].name)
			}
		}
	})
}

func FuzzDecodeRaw(f *testing.F)    { fuzzDecode(f, Raw) }
func FuzzDecodeLZ4(f *testing.F)    { fuzzDecode(f, LZ4) }
func FuzzDecodePlanes(f *testing.F) { fuzzDecode(f, Planes) }
func FuzzDecodeDense(f *testing.F)  { fuzzDecode(f, Dense) }

// FuzzRoundTrip looks for chunks that do not come back, or that the forms of
// the kernels encode to different bytes.
func FuzzRoundTrip(f *testing.F) {
	for i, dtype := range dtypes {
		for c := range allCodecs() {
			f.Add(states(dtype, 500, 1), uint8(i), uint8(c))
			f.Add(make([]byte, 777), uint8(i), uint8(c))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, dtype, codec uint8) {
		name := dtypes[int(dtype)%len(dtypes)]
		// Repeated, even short inputs get past the raw fallback.
		for _, raw := range [][]byte{raw, bytes.Repeat(raw, 1+2000/(len(raw)+1))} {
			var first []byte
			for i, k := range kernelForms() {
				e, err := NewEncoder(ID(codec%4), name)
				if err != nil {
					t.Fatal(err)
				}
				d, err := NewDecoder(name)
				if err != nil {
					t.Fatal(err)
				}
				e.k, d.k = k, k
				roundTrip(t, e, d, raw)
				enc, _, err := e.Encode(nil, raw)
				if err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					first = enc
				}
				if !bytes.Equal(first, enc) {
					t.Fatalf("%s gives other bytes than portable code", k.name)
				}
			}
		}
	})
}

// TestMutations flips bits and cuts bytes of sound chunks: decoding fails or
// gives some value of the right size, never more.
func TestMutations(t *testing.T) {
	for _, dtype := range dtypes {
		for _, c := range []ID{Planes, Dense} {
			raw := append(states(dtype, 900, 4), make([]byte, 1024)...)
			e, err := NewEncoder(c, dtype)
			if err != nil {
				t.Fatal(err)
			}
			enc, used, err := e.Encode(nil, raw)
			if err != nil || used != c {
				t.Fatalf("%s: %v %v", dtype, used, err)
			}
			d, err := NewDecoder(dtype)
			if err != nil {
				t.Fatal(err)
			}
			dst := make([]byte, len(raw))
			refused := 0
			for bit := range 8 * len(enc) {
				bad := bytes.Clone(enc)
				bad[bit/8] ^= 1 << (bit % 8)
				if err := d.Decode(dst, bad, c); err != nil {
					if !errors.Is(err, ErrMalformed) {
						t.Fatal(err)
					}
					refused++
				}
			}
			if refused < 8*4 {
				t.Errorf("%s %v: only %d of %d flips were refused", dtype, c, refused, 8*len(enc))
			}
			// A decoder that has seen damage still works.
			if err := d.Decode(dst, enc, c); err != nil || !bytes.Equal(dst, raw) {
				t.Fatalf("%s %v after damage: %v", dtype, c, err)
			}
		}
	}
}
