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

func archBF16() []*BF16 {
	if !hasAVX512() {
		return nil
	}
	var out []*BF16
	if cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 && allowTiles() {
		out = append(out, &BF16{name: "amx", half: true, tile: 32, gemm: amxgemm32x32, pack: transpose512, pairs: pairs512})
	}
	if cpu.X86.HasAVX512BF16 {
		out = append(out, &BF16{name: "avx512bf16", half: true, tile: RowTile, gemm: bf16gemm12x32, pack: transpose512, pairs: pairs512})
	}
	return out
}

// allowTiles asks the kernel for the tile registers, which a process must do
// before it uses them; asking again is harmless.
func allowTiles() bool {
	const archReqXCompPerm, xfeatureTileData = 0x1023, 18
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureTileData, 0)
	return errno == 0
}
