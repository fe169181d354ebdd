package kernel

import "golang.org/x/sys/cpu"

func archSets() []*Set {
	var out []*Set
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasFMA {
		out = append(out, avx512())
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		out = append(out, avx2())
	}
	return out
}

func avx512() *Set {
	s := Generic()
	s.name = "avx512"
	s.gemm = gemmAVX512
	return s
}

func avx2() *Set {
	s := Generic()
	s.name = "avx2"
	s.gemm = gemmAVX2
	return s
}

//go:noescape
func gemm12x32(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)

//go:noescape
func gemm6x16(kc, mt int, a *float32, lda int, b, c *float32, ldc, acc int)

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func gemmAVX512(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool) {
	gemm12x32(kc, mt, a, lda, b, c, ldc, flag(acc))
}

func gemmAVX2(kc, mt int, a *float32, lda int, b, c *float32, ldc int, acc bool) {
	gemm6x16(kc, 2*mt, a, lda, b, c, ldc, flag(acc))
}

func archBF16() []*BF16 { return nil }
