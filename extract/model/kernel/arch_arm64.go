package kernel

//go:noescape
func gemm6x16(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)

// archSets returns products by NEON, which every arm64 CPU has; the row
// operations are plain Go.
func archSets() []*Set {
	s := Generic()
	s.name = "neon"
	s.gemm = func(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool) {
		add := 0
		if acc {
			add = 1
		}
		gemm6x16(kc, 2*mt, a, lda, b, c, ldc, add)
	}
	return []*Set{s}
}

func archBF16() (fast, slow []*BF16) { return nil, nil }
