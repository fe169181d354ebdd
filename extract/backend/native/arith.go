package native

import (
	"eaglebatch/extract/model/kernel"
	"eaglebatch/extract/model/tensor"
)

// packed is the right-hand side of a product: n columns (padded) over k.
type packed struct {
	n, k int
	f    []float32 // fp32 kernels
	h    []uint16  // bf16 kernels
}

// arith is how products are computed: fp32, or with operands rounded to bf16.
type arith struct {
	set  *kernel.Set
	bf16 *kernel.BF16 // nil: fp32
}

// operandBuf is a buffer for left-hand sides as the kernels want them; unused
// for fp32.
type operandBuf struct {
	f []float32
	h []uint16
}

func (a arith) newOperand(n int) operandBuf {
	switch {
	case a.bf16 == nil:
		return operandBuf{}
	case a.bf16.Half():
		return operandBuf{h: make([]uint16, n)}
	}
	return operandBuf{f: make([]float32, n)}
}

// arena hands out pieces of one buffer for packed matrices.
type arena struct {
	f []float32
	h []uint16
}

func (a arith) newArena(n int) arena {
	if a.bf16.Half() {
		return arena{h: make([]uint16, n)}
	}
	return arena{f: make([]float32, n)}
}

func (m *arena) take(n, k int) packed {
	p := packed{n: n, k: k}
	if m.h != nil {
		p.h, m.h = m.h[:n*k:n*k], m.h[n*k:]
	} else {
		p.f, m.f = m.f[:n*k:n*k], m.f[n*k:]
	}
	return p
}

// slice returns the packed matrix that lies at offset at of p's buffer.
func (p packed) at(off, n, k int) packed {
	q := packed{n: n, k: k}
	if p.h != nil {
		q.h = p.h[off : off+n*k]
	} else {
		q.f = p.f[off : off+n*k]
	}
	return q
}

// panel packs 32 rows (nil: zeros) of k values as columns c..c+31 of p. The
// rows are changed.
func (a arith) panel(p packed, rows *[kernel.Panel][]float32, c int) {
	for _, r := range rows {
		if r != nil {
			a.round(r)
		}
	}
	a.roundedPanel(p, rows, c)
}

// roundedPanel is panel for rows that round has seen.
func (a arith) roundedPanel(p packed, rows *[kernel.Panel][]float32, c int) {
	if a.bf16.Half() {
		a.bf16.PackPanel(p.h, rows, c, p.k)
		return
	}
	a.set.PackPanel(p.f, rows, c, p.n, p.k)
}

// round makes of a row what is packed: for bf16 the rounded values, in half
// the space where the kernels want them so.
func (a arith) round(r []float32) {
	switch {
	case a.bf16.Half():
		a.set.ToBF16(kernel.Words(r, len(r)), r)
	case a.bf16 != nil:
		a.set.RoundBF16(r, r)
	}
}

// decode makes row r of a matrix ready for roundedPanel, padded to len(dst).
// Rows that are bfloat16 already are copied where the kernels take those.
func (a arith) decode(m tensor.Matrix, r int, dst []float32) {
	switch {
	case m.Type == tensor.BF16 && a.bf16.Half():
		words := kernel.Words(dst, len(dst))
		kernel.CopyBF16(words[:m.Cols], m.Raw(r))
		clear(words[m.Cols:])
		return
	case m.Type == tensor.BF16:
		a.set.FromBF16(dst[:m.Cols], m.Raw(r))
	default:
		m.Row(r, dst)
	}
	clear(dst[m.Cols:])
	if m.Type != tensor.BF16 {
		a.round(dst)
	}
}

// keyRows packs the rows of values, from first on, n of them and zeros up to
// p.k, each 32 columns wide and ld apart, as columns c..c+31 of p: they are
// rows of the product's k already.
func (a arith) keyRows(p packed, x []float32, ld, n, c int, zero []float32) {
	row := func(i int) []float32 {
		if i < n {
			return x[i*ld:][:kernel.Panel]
		}
		return zero[:kernel.Panel]
	}
	if a.bf16.Half() {
		for i := 0; i < p.k; i += 2 {
			a.bf16.PackPairs(p.h[c*p.k+i*kernel.Panel:][:2*kernel.Panel], row(i), row(i+1))
		}
		return
	}
	for i := range p.k {
		dst := p.f[c*p.k+i*kernel.Panel:][:kernel.Panel]
		if a.bf16 != nil {
			a.set.RoundBF16(dst, row(i))
		} else {
			copy(dst, row(i))
		}
	}
}

// left is the left-hand side of a product: m rows of k values.
type left struct {
	m, ld int
	f     []float32
	h     []uint16
}

// left makes m rows of k values at x the left-hand side of products. For bf16
// that is a copy in buf.
func (a arith) left(x []float32, ldx, m, k int, buf operandBuf) left {
	switch {
	case a.bf16 == nil:
		return left{m: m, ld: ldx, f: x}
	case a.bf16.Half():
		kp := kernel.Up(k, 32)
		l := left{m: m, ld: stride(kp), h: buf.h}
		for i := range m {
			row := l.h[i*l.ld:][:kp]
			a.set.ToBF16(row, x[i*ldx:][:k])
			clear(row[k:])
		}
		return l
	}
	l := left{m: m, ld: stride(k), f: buf.f}
	for i := range m {
		a.set.RoundBF16(l.f[i*l.ld:][:k], x[i*ldx:][:k])
	}
	return l
}

// mul computes c = l·p, or adds it.
func (a arith) mul(c []float32, ldc int, l left, p packed, acc bool) {
	if l.h != nil {
		a.bf16.Gemm(c, ldc, l.h, l.ld, p.h, l.m, p.n, p.k, acc)
		return
	}
	a.set.Gemm(c, ldc, l.f, l.ld, p.f, kernel.Up(l.m, kernel.RowTile), p.n, p.k, acc)
}
