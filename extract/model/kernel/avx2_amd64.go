package kernel

//go:noescape
func gemm6x16(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)

//go:noescape
func softmax256(s *float32, n int, scale float32, st *SoftmaxState)

//go:noescape
func silu256(gate, up *float32, n int)

//go:noescape
func sumsq256(x *float32, n int) float32

//go:noescape
func norm256(dst, x, w *float32, n int, inv float32)

//go:noescape
func add256(dst, x *float32, n int)

//go:noescape
func scale256(x *float32, n int, f float32)

//go:noescape
func rotate256(lo, hi, cos, sin *float32, n int)

//go:noescape
func bf16x256(dst *uint16, x *float32, n int)

//go:noescape
func round256(dst, x *float32, n int)

//go:noescape
func widen256(dst *float32, src *byte, n int)

func avx2() *Set {
	return vector("avx2", vectorOps{
		gemm: func(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int) {
			gemm6x16(kc, 2*mt, a, lda, b, c, ldc, acc)
		},
		softmax: softmax256, silu: silu256, sumsq: sumsq256, norm: norm256, add: add256, scale: scale256,
		rotate: rotate256, bf16: bf16x256, round: round256, widen: widen256, pack: packGeneric,
	})
}
