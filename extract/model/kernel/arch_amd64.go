package kernel

import "golang.org/x/sys/cpu"

func archSets() []*Set {
	var out []*Set
	if hasAVX512() {
		out = append(out, avx512())
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		out = append(out, avx2())
	}
	return out
}

func hasAVX512() bool {
	x := cpu.X86
	return x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VL && x.HasFMA
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// body returns how much of n a vector loop takes; the rest is done in plain
// Go, which gives the same bytes.
func body(n int) int { return n &^ (Lanes - 1) }
