// Package gguf reads GGUF files, versions 2 and 3, little endian.
//
// Every count, length and offset is checked before it is used: a damaged file
// gives an error that names the place, never a panic and never an allocation
// that the file's size does not justify.
package gguf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"eaglebatch/extract/model/mapped"
	"eaglebatch/extract/model/tensor"
)

// Header is everything before the tensors' bytes.
type Header struct {
	Version uint32
	KV      map[string]Value
	Tensors []Info
	Data    int64 // where the tensors' bytes begin in the file
}

// Info places one tensor. Shape is row-major, as everywhere in this module:
// the reverse of the file's order.
type Info struct {
	Name   string
	Type   tensor.Type // not all can be decoded
	Shape  []int
	Offset int64 // from Header.Data
	Bytes  int64 // 0 for a type that cannot be decoded
}

// Value is a metadata value. Scalars and strings are decoded; of an array only
// its element kind, count and bytes are kept.
type Value struct {
	Kind  Kind
	Int   int64 // every integer kind and bool
	Float float64
	Str   string
	Elem  Kind // of an array
	Count int
	Raw   []byte // an array's elements as in the file
}

// Kind is a metadata type, numbered as in the file.
type Kind uint32

// The metadata types.
const (
	Uint8 Kind = iota
	Int8
	Uint16
	Int16
	Uint32
	Int32
	Float32
	Bool
	String
	Array
	Uint64
	Int64
	Float64
)

func (k Kind) size() int {
	switch k {
	case Uint8, Int8, Bool:
		return 1
	case Uint16, Int16:
		return 2
	case Uint32, Int32, Float32:
		return 4
	case Uint64, Int64, Float64:
		return 8
	}
	return 0
}

// typeOf names a tensor type: only those that tensor.Type knows can be decoded.
func typeOf(n uint32) tensor.Type {
	names := []tensor.Type{
		0: tensor.F32, 1: tensor.F16, 2: tensor.Q4_0, 3: tensor.Q4_1, 6: tensor.Q5_0, 7: tensor.Q5_1, 8: tensor.Q8_0,
		9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: tensor.Q4_K, 13: tensor.Q5_K, 14: tensor.Q6_K, 15: "Q8_K",
		16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
		24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: tensor.BF16,
		34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
	}
	if n < uint32(len(names)) && names[n] != "" {
		return names[n]
	}
	return tensor.Type(fmt.Sprintf("type %d", n))
}

// Parse reads the header at the start of b, of a file of size bytes.
func Parse(b []byte, size int64) (Header, error) {
	c := &cursor{b: b}
	if magic := c.bytes(4); c.err == nil && string(magic) != "GGUF" {
		return Header{}, fmt.Errorf("begins with %q, a GGUF file with \"GGUF\"", magic)
	}
	h := Header{Version: c.u32(), KV: map[string]Value{}}
	if c.err == nil && h.Version != 2 && h.Version != 3 {
		if v := bits.ReverseBytes32(h.Version); v == 2 || v == 3 {
			return Header{}, errors.New("a big-endian GGUF file is not supported: convert it (gguf_convert_endian.py of llama.cpp)")
		}
		return Header{}, fmt.Errorf("GGUF version %d is not supported (2 and 3 are): convert the model again", h.Version)
	}
	tensors, kvs := c.u64(), c.u64()
	// The smallest key and value take 13 bytes, the smallest tensor 24.
	if c.err == nil && (tensors > uint64(len(b))/24 || kvs > uint64(len(b))/13) {
		return Header{}, fmt.Errorf("%d tensors and %d metadata keys do not fit in %d bytes", tensors, kvs, len(b))
	}
	for i := uint64(0); i < kvs && c.err == nil; i++ {
		h.parseKV(c)
	}
	for i := uint64(0); i < tensors && c.err == nil; i++ {
		h.parseTensor(c)
	}
	if c.err != nil {
		return Header{}, fmt.Errorf("at byte %d: %w", c.at, c.err)
	}
	return h, h.place(int64(c.next), size)
}

func (h *Header) parseKV(c *cursor) {
	key := c.str()
	v := c.value(Kind(c.u32()))
	if c.err != nil {
		c.err = fmt.Errorf("metadata %q: %w", key, c.err)
		return
	}
	if _, ok := h.KV[key]; ok {
		c.err = fmt.Errorf("metadata key %q comes twice", key)
	}
	h.KV[key] = v
}

func (h *Header) parseTensor(c *cursor) {
	t := Info{Name: c.str()}
	dims := c.u32()
	if c.err == nil && dims > 4 {
		c.err = fmt.Errorf("tensor %q has %d dimensions", t.Name, dims)
	}
	for i := uint32(0); i < dims && c.err == nil; i++ {
		d := c.u64()
		if d > math.MaxInt32 {
			c.err = fmt.Errorf("tensor %q has a dimension of %d", t.Name, d)
		}
		t.Shape = append(t.Shape, int(d))
	}
	slices.Reverse(t.Shape)
	t.Type = typeOf(c.u32())
	off := c.u64()
	if c.err != nil {
		return
	}
	if off > math.MaxInt64/2 {
		c.err = fmt.Errorf("tensor %q lies at offset %d", t.Name, off)
		return
	}
	t.Offset = int64(off)
	if v, _ := t.Type.Block(); v > 0 {
		n, err := tensor.Size(t.Type, t.Shape)
		if err != nil {
			c.err = fmt.Errorf("tensor %q: %w", t.Name, err)
			return
		}
		t.Bytes = int64(n)
	}
	h.Tensors = append(h.Tensors, t)
}

// place checks that every tensor lies within the file and none on another.
func (h *Header) place(end, size int64) error {
	align := int64(32)
	if v, ok := h.KV["general.alignment"]; ok {
		align = v.Int
	}
	if align <= 0 || align > 1<<20 || align%8 != 0 {
		return fmt.Errorf("general.alignment is %d", align)
	}
	h.Data = (end + align - 1) / align * align
	seen := map[string]bool{}
	order := slices.Clone(h.Tensors)
	slices.SortStableFunc(order, func(a, b Info) int { return cmp.Compare(a.Offset, b.Offset) })
	at := int64(0)
	for _, t := range order {
		if seen[t.Name] {
			return fmt.Errorf("tensor %q comes twice", t.Name)
		}
		seen[t.Name] = true
		if t.Offset%align != 0 || t.Offset < at {
			return fmt.Errorf("tensor %q lies at offset %d, not on %d bytes or inside the one before it", t.Name, t.Offset, align)
		}
		if h.Data+t.Offset+t.Bytes > size {
			return fmt.Errorf("tensor %q ends at byte %d, the file at %d", t.Name, h.Data+t.Offset+t.Bytes, size)
		}
		at = t.Offset + t.Bytes
	}
	return nil
}

// File is a mapped GGUF file. It may be shared; its tensors are gone after
// Close.
type File struct {
	Header
	m      *mapped.File
	byName map[string]int
}

// Open maps the file at path.
func Open(path string) (*File, error) {
	m, err := mapped.Open(path)
	if err != nil {
		return nil, err
	}
	h, err := Parse(m.Data, int64(len(m.Data)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), m.Close())
	}
	f := &File{Header: h, m: m, byName: make(map[string]int, len(h.Tensors))}
	for i, t := range h.Tensors {
		f.byName[t.Name] = i
	}
	return f, nil
}

// Tensor returns the named tensor.
func (f *File) Tensor(name string) (tensor.Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return tensor.Tensor{}, false
	}
	t := f.Tensors[i]
	at := f.Data + t.Offset
	return tensor.Tensor{Name: t.Name, Type: t.Type, Shape: t.Shape, Data: f.m.Data[at : at+t.Bytes]}, true
}

// HeaderBytes returns the file's bytes before the tensors.
func (f *File) HeaderBytes() []byte { return f.m.Data[:min(f.Data, int64(len(f.m.Data)))] }

// Size is the file's size in bytes.
func (f *File) Size() int64 { return int64(len(f.m.Data)) }

// Close unmaps the file.
func (f *File) Close() error { return f.m.Close() }
