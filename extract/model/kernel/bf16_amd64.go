package kernel

import (
	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

//go:noescape
func bf16gemm12x32(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc, acc int)

//go:noescape
func amxgemm32x32(k, mt int, a *uint16, lda int, b *uint16, c *float32, ldc, acc int)

//go:noescape
func pairs512(dst *uint16, a, b *float32, n int)

func cpuid(leaf uint32) (b, c, d uint32)

// archBF16 returns the families that are faster than fp32 products here, and
// those that are not.
func archBF16() (fast, slow []*BF16) {
	if !hasAVX512() {
		return nil, nil
	}
	if cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 && allowTiles() {
		fast = append(fast, &BF16{name: "amx", half: true, tile: 32, gemm: amxgemm32x32, pack: transpose512, pairs: pairs512})
	}
	if cpu.X86.HasAVX512BF16 {
		f := &BF16{name: "avx512bf16", half: true, tile: RowTile, gemm: bf16gemm12x32, pack: transpose512, pairs: pairs512}
		if slowDots() {
			slow = append(slow, f)
		} else {
			fast = append(fast, f)
		}
	}
	return fast, slow
}

// slowDots reports whether VDPBF16PS does half the work of the fp32
// instruction in a given time: so on Intel's CPUs since Sapphire Rapids, which
// have AMX instead (virtual machines often hide it) and are told from Cooper
// Lake by AVX512-FP16. It is asked of the CPU, not of a clock, so that the
// choice, on which bytes depend, is always the same.
func slowDots() bool {
	b, c, d := cpuid(0)
	if b != 0x756e6547 || d != 0x49656e69 || c != 0x6c65746e { // GenuineIntel
		return false
	}
	const fp16 = 1 << 23
	_, _, d = cpuid(7)
	return d&fp16 != 0
}

// allowTiles asks the kernel for the tile registers, which a process must do
// before it uses them; asking again is harmless.
func allowTiles() bool {
	const archReqXCompPerm, xfeatureTileData = 0x1023, 18
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureTileData, 0)
	return errno == 0
}
