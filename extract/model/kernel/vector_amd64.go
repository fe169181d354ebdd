package kernel

// vectorOps are the loops of an instruction set: n is a positive multiple of
// Lanes.
type vectorOps struct {
	gemm    func(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)
	softmax func(s *float32, n int, scale float32, st *SoftmaxState)
	silu    func(gate, up *float32, n int)
	sumsq   func(x *float32, n int) float32
	norm    func(dst, x, w *float32, n int, inv float32)
	add     func(dst, x *float32, n int)
	scale   func(x *float32, n int, f float32)
	rotate  func(lo, hi, cos, sin *float32, n int)
	bf16    func(dst *uint16, x *float32, n int)
	round   func(dst, x *float32, n int)
	widen   func(dst *float32, src *byte, n int)
	pack    func(dst []float32, rows *[Panel][]float32, k0, kc int)
}

// vector makes a Set of loops: what is left of a row behind the last full
// vector is done in plain Go. Sums over a row whose length is no multiple of
// Lanes are plain Go altogether, which keeps their order.
func vector(name string, v vectorOps) *Set {
	return &Set{
		name: name,
		gemm: func(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool) {
			v.gemm(kc, mt, a, lda, b, c, ldc, flag(acc))
		},
		softmax: func(s []float32, scale float32, st *SoftmaxState) {
			if len(s) != body(len(s)) {
				softmaxGeneric(s, scale, st)
				return
			}
			v.softmax(&s[0], len(s), scale, st)
		},
		sumsq: func(x []float32) float32 {
			if len(x) != body(len(x)) {
				return sumsqGeneric(x)
			}
			return v.sumsq(&x[0], len(x))
		},
		silu: func(gate, up []float32) {
			n := body(len(gate))
			if n > 0 {
				v.silu(&gate[0], &up[0], n)
			}
			siluGeneric(gate[n:], up[n:])
		},
		norm: func(dst, x, w []float32, inv float32) {
			n := body(len(x))
			if n > 0 {
				v.norm(&dst[0], &x[0], &w[0], n, inv)
			}
			normGeneric(dst[n:], x[n:], w[n:], inv)
		},
		add:    v.addRow,
		scale:  v.scaleRow,
		rotate: v.rotateRow,
		toBF16: v.bf16Row,
		round:  v.roundRow,
		widen:  v.widenRow,
		pack:   v.pack,
	}
}

func (v vectorOps) addRow(dst, x []float32) {
	n := body(len(dst))
	if n > 0 {
		v.add(&dst[0], &x[0], n)
	}
	addGeneric(dst[n:], x[n:])
}

func (v vectorOps) scaleRow(x []float32, f float32) {
	n := body(len(x))
	if n > 0 {
		v.scale(&x[0], n, f)
	}
	scaleGeneric(x[n:], f)
}

func (v vectorOps) rotateRow(lo, hi, cos, sin []float32) {
	n := body(len(lo))
	if n > 0 {
		v.rotate(&lo[0], &hi[0], &cos[0], &sin[0], n)
	}
	rotateGeneric(lo[n:], hi[n:], cos[n:], sin[n:])
}

func (v vectorOps) bf16Row(dst []uint16, x []float32) {
	n := body(len(x))
	if n > 0 {
		v.bf16(&dst[0], &x[0], n)
	}
	toBF16Generic(dst[n:], x[n:])
}

func (v vectorOps) roundRow(dst, x []float32) {
	n := body(len(x))
	if n > 0 {
		v.round(&dst[0], &x[0], n)
	}
	roundGeneric(dst[n:], x[n:])
}

func (v vectorOps) widenRow(dst []float32, src []byte) {
	n := body(len(dst))
	if n > 0 {
		v.widen(&dst[0], &src[0], n)
	}
	widenGeneric(dst[n:], src[2*n:])
}
