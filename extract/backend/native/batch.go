package native

import (
	"math"
	"slices"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/extract/model/tensor"
)

// seq is one sample of a batch.
type seq struct {
	backend.Request
	first int // its first row in the batch
	keys  int // offset of its packed keys and values, in rows
	table *rotation
}

// batch is what one forward pass computes.
type batch struct {
	seqs []seq
	rows int
	keys int // rows of packed keys: each sample's, rounded up to a panel
	out  []byte
}

func (b *batch) add(r backend.Request) {
	b.seqs = append(b.seqs, seq{Request: r, first: b.rows, keys: b.keys})
	b.rows += len(r.Tokens)
	b.keys += kernel.Up(len(r.Tokens), kernel.Panel)
}

// each calls fn for the part of each sample that lies in rows [from, to): rows
// pos.. of the sample at row row of the batch, n of them.
func (b *batch) each(from, to int, fn func(s *seq, pos, row, n int)) {
	for i := range b.seqs {
		s := &b.seqs[i]
		lo, hi := max(from, s.first), min(to, s.first+len(s.Tokens))
		if lo < hi {
			fn(s, lo-s.first, lo, hi-lo)
		}
	}
}

// rotation is the cosines and sines of positions 0.. at a set of frequencies.
type rotation struct {
	half     int
	cos, sin []float32
}

func (r *rotation) at(pos int) (cos, sin []float32) {
	return r.cos[pos*r.half:][:r.half], r.sin[pos*r.half:][:r.half]
}

// extend computes the angles as transformers does: position times frequency in
// float32.
func (r *rotation) extend(freq []float32, factor float32, n int) {
	r.half = len(freq)
	r.cos = slices.Grow(r.cos, max(0, n*r.half-len(r.cos)))
	r.sin = slices.Grow(r.sin, max(0, n*r.half-len(r.sin)))
	for pos := len(r.cos) / r.half; pos < n; pos++ {
		for _, f := range freq {
			sin, cos := math.Sincos(float64(float32(pos) * f))
			r.cos = append(r.cos, float32(cos)*factor)
			r.sin = append(r.sin, float32(sin)*factor)
		}
	}
}

// rotations attaches to every sample its angles. Only rope type "dynamic"
// needs more than one table.
func (e *engine) rotations(b *batch) {
	for i := range b.seqs {
		s := &b.seqs[i]
		n := len(s.Tokens)
		freq, factor := e.dec.Rope.Frequencies(e.headDim, n)
		s.table = &e.table
		if e.dec.Rope.DependsOnLength(n) {
			s.table = &rotation{}
		}
		s.table.extend(freq, factor, n)
	}
}

// encode writes x as dtype to dst.
func (e *engine) encode(dst []byte, x []float32) {
	switch e.dtype {
	case "bf16":
		for i, v := range x {
			h := tensor.F32ToBF16(v)
			dst[2*i], dst[2*i+1] = byte(h), byte(h>>8)
		}
	case "fp16":
		for i, v := range x {
			h := tensor.F32ToF16(v)
			dst[2*i], dst[2*i+1] = byte(h), byte(h>>8)
		}
	case "fp32":
		for i, v := range x {
			u := math.Float32bits(v)
			dst[4*i], dst[4*i+1], dst[4*i+2], dst[4*i+3] = byte(u), byte(u>>8), byte(u>>16), byte(u>>24)
		}
	}
}
