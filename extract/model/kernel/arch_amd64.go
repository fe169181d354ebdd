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

func archBF16() []*BF16 { return nil }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// body returns how much of n a vector loop takes; the rest is done in plain
// Go, which gives the same bytes.
func body(n int) int { return n &^ (Lanes - 1) }
