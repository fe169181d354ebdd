package kernel

//go:noescape
func gemm12x32(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)

//go:noescape
func softmax512(s *float32, n int, scale float32, st *SoftmaxState)

//go:noescape
func silu512(gate, up *float32, n int)

//go:noescape
func sumsq512(x *float32, n int) float32

//go:noescape
func norm512(dst, x, w *float32, n int, inv float32)

//go:noescape
func add512(dst, x *float32, n int)

//go:noescape
func scale512(x *float32, n int, f float32)

//go:noescape
func rotate512(lo, hi, cos, sin *float32, n int)

//go:noescape
func bf16x512(dst *uint16, x *float32, n int)

//go:noescape
func round512(dst, x *float32, n int)

//go:noescape
func widen512(dst *float32, src *byte, n int)

//go:noescape
func transpose512(dst *float32, rows *[]float32, from, blocks int)

func avx512() *Set {
	return vector("avx512", vectorOps{
		gemm: func(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int) {
			gemm12x32(kc, mt, a, lda, b, c, ldc, acc)
		},
		softmax: softmax512, silu: silu512, sumsq: sumsq512, norm: norm512, add: add512, scale: scale512,
		rotate: rotate512, bf16: bf16x512, round: round512, widen: widen512, pack: pack512,
	})
}

func pack512(dst []float32, rows *[Panel][]float32, k0, kc int) {
	for _, r := range rows {
		if r == nil || kc%Lanes != 0 {
			packGeneric(dst, rows, k0, kc)
			return
		}
	}
	transpose512(&dst[0], &rows[0], k0, kc/Lanes)
	transpose512(&dst[Lanes], &rows[Lanes], k0, kc/Lanes)
}
