package gguf

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"eaglebatch/extract/model/tensor"
)

// builder writes a GGUF file piece by piece.
type builder struct{ b []byte }

func (w *builder) u32(v uint32)  { w.b = binary.LittleEndian.AppendUint32(w.b, v) }
func (w *builder) u64(v uint64)  { w.b = binary.LittleEndian.AppendUint64(w.b, v) }
func (w *builder) str(s string)  { w.u64(uint64(len(s))); w.b = append(w.b, s...) }
func (w *builder) pad(align int) { w.b = append(w.b, make([]byte, -len(w.b)&(align-1))...) }

func (w *builder) head(version uint32, tensors, kvs uint64) {
	w.b = append(w.b, "GGUF"...)
	w.u32(version)
	w.u64(tensors)
	w.u64(kvs)
}

func (w *builder) tensor(name string, kind uint32, offset uint64, dims ...uint64) {
	w.str(name)
	w.u32(uint32(len(dims)))
	for _, d := range dims {
		w.u64(d)
	}
	w.u32(kind)
	w.u64(offset)
}

func good() []byte {
	w := &builder{}
	w.head(3, 2, 4)
	w.str("general.architecture")
	w.u32(uint32(String))
	w.str("llama")
	w.str("llama.block_count")
	w.u32(uint32(Uint32))
	w.u32(7)
	w.str("eps")
	w.u32(uint32(Float32))
	w.u32(math.Float32bits(0.25))
	w.str("tokenizer.ggml.tokens")
	w.u32(uint32(Array))
	w.u32(uint32(String))
	w.u64(2)
	w.str("a")
	w.str("bc")
	w.tensor("x", 0, 0, 4, 3)
	w.tensor("q", 8, 64, 32, 2)
	w.pad(32)
	w.b = append(w.b, make([]byte, 64+68)...)
	return w.b
}

func TestParse(t *testing.T) {
	b := good()
	h, err := Parse(b, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if h.KV["general.architecture"].Str != "llama" || h.KV["llama.block_count"].Int != 7 || h.KV["eps"].Float != 0.25 || h.KV["tokenizer.ggml.tokens"].Count != 2 {
		t.Errorf("metadata %+v", h.KV)
	}
	x, q := h.Tensors[0], h.Tensors[1]
	if x.Type != tensor.F32 || len(x.Shape) != 2 || x.Shape[0] != 3 || x.Shape[1] != 4 || x.Bytes != 48 {
		t.Errorf("tensor %+v", x)
	}
	if q.Type != tensor.Q8_0 || q.Bytes != 68 || h.Data+q.Offset+q.Bytes != int64(len(b)) {
		t.Errorf("tensor %+v of data at %d", q, h.Data)
	}
}

// TestParseCut: a file cut anywhere is refused.
func TestParseCut(t *testing.T) {
	b := good()
	for n := range b {
		if _, err := Parse(b[:n], int64(n)); err == nil {
			t.Fatalf("%d bytes of %d parse", n, len(b))
		}
	}
}

func TestParseRefuses(t *testing.T) {
	build := func(f func(*builder)) []byte { w := &builder{}; f(w); return w.b }
	tests := []struct {
		name string
		b    []byte
		want string
	}{
		{"magic", []byte("GGML\x03\x00\x00\x00"), "GGML"},
		{"version", build(func(w *builder) { w.head(1, 0, 0) }), "version 1"},
		{"counts", build(func(w *builder) { w.head(3, 1<<60, 1) }), "do not fit"},
		{"string length", build(func(w *builder) { w.head(3, 0, 1); w.u64(1 << 62); w.b = append(w.b, make([]byte, 99)...) }), "ends here"},
		{"value type", build(func(w *builder) { w.head(3, 0, 1); w.str("k"); w.u32(77); w.u64(0) }), "unknown type 77"},
		{"nested array", build(func(w *builder) {
			w.head(3, 0, 1)
			w.str("k")
			w.u32(9)
			w.u32(9)
			w.u64(1)
			w.u64(0)
		}), "type 9"},
		{"array length", build(func(w *builder) {
			w.head(3, 0, 1)
			w.str("k")
			w.u32(9)
			w.u32(0)
			w.u64(1 << 50)
			w.u64(0)
		}), "does not fit"},
		{"key twice", build(func(w *builder) {
			w.head(3, 0, 2)
			for range 2 {
				w.str("key")
				w.u32(uint32(Uint64))
				w.u64(1)
			}
		}), "twice"},
		{"tensor twice", build(func(w *builder) {
			w.head(3, 2, 0)
			w.tensor("x", 0, 0, 8)
			w.tensor("x", 0, 32, 8)
			w.pad(32)
			w.b = append(w.b, make([]byte, 64)...)
		}), "twice"},
		{"overlap", build(func(w *builder) {
			w.head(3, 2, 0)
			w.tensor("x", 0, 0, 16)
			w.tensor("y", 0, 32, 8)
			w.pad(32)
			w.b = append(w.b, make([]byte, 64)...)
		}), `"y"`},
		{"block", build(func(w *builder) { w.head(3, 1, 0); w.tensor("x", 8, 0, 33); w.b = append(w.b, make([]byte, 99)...) }), "whole number"},
		{"dimensions", build(func(w *builder) { w.head(3, 1, 0); w.tensor("x", 0, 0, 1, 1, 1, 1, 1); w.u64(0) }), "5 dimensions"},
		{"beyond", build(func(w *builder) { w.head(3, 1, 0); w.tensor("x", 0, 1<<40, 1) }), "ends at byte"},
	}
	for _, tc := range tests {
		_, err := Parse(tc.b, int64(len(tc.b)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", tc.name, err, tc.want)
		}
	}
}

// FuzzParse: whatever the bytes, Parse ends, and what it accepts lies in the
// file.
func FuzzParse(f *testing.F) {
	f.Add(good())
	f.Add(good()[:60])
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Parse(b, int64(len(b)))
		if err != nil {
			return
		}
		for _, x := range h.Tensors {
			if x.Offset < 0 || x.Bytes < 0 || h.Data+x.Offset+x.Bytes > int64(len(b)) {
				t.Fatalf("tensor %q lies at %d+%d+%d of %d bytes", x.Name, h.Data, x.Offset, x.Bytes, len(b))
			}
		}
	})
}
