package codec

import "golang.org/x/sys/cpu"

// fastKernels returns the fastest form of the kernels for this machine.
func fastKernels() kernels {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW:
		return avx512Kernels()
	case cpu.X86.HasAVX2:
		return avx2Kernels()
	}
	return portableKernels()
}

func avx2Kernels() kernels {
	k := kernels{
		name:    "avx2",
		split:   splitBlocks(splitAVX2),
		join:    joinBlocks(joinAVX2),
		plane:   planeBlocks(planeAVX2),
		unplane: unplaneBlocks(unplaneAVX2),

		encodeTree: encodeTreeGo,
		decodeTree: decodeTreeGo,
	}
	if fastPDEP() {
		k.encodeTree = downTree(encodeTreeAVX2)
		k.decodeTree = upTree(decodeTreeAVX2, true)
	}
	return k
}

func avx512Kernels() kernels {
	k := kernels{
		name:    "avx512",
		split:   splitBlocks(splitAVX512),
		join:    joinBlocks(joinAVX512),
		plane:   planeBlocks(planeAVX512),
		unplane: unplaneBlocks(unplaneAVX512),

		encodeTree: encodeTreeGo,
		decodeTree: decodeTreeGo,
	}
	if fastPDEP() {
		k.encodeTree = downTree(encodeTreeAVX512)
		k.decodeTree = upTree(decodeTreeAVX512, false)
	}
	return k
}

// The assembly works on whole blocks of 64 values; n counts values and is a
// positive multiple of 64. The functions below cut every slice to its size
// before they hand out its address, and leave the rest to portable code.

func splitBlocks(asm func(top, low, src *byte, n int)) func(top, low, src []byte) {
	return func(top, low, src []byte) {
		n := len(src) / 2
		top, low = top[:n], low[:n]
		m := n &^ 63
		if m > 0 {
			asm(&top[0], &low[0], &src[0], m)
		}
		splitGo(top[m:], low[m:], src[2*m:])
	}
}

func joinBlocks(asm func(dst, top, low *byte, n int)) func(dst, top, low []byte) {
	return func(dst, top, low []byte) {
		n := len(dst) / 2
		top, low = top[:n], low[:n]
		m := n &^ 63
		if m > 0 {
			asm(&dst[0], &top[0], &low[0], m)
		}
		joinGo(dst[2*m:], top[m:], low[m:])
	}
}

func planeBlocks(asm func(dst, src *byte, n, stride int, mask, base byte)) func(dst, src []byte, mask, base byte) {
	return func(dst, src []byte, mask, base byte) {
		stride := planeSize(len(src))
		dst = dst[:8*stride]
		m := len(src) &^ 63
		if m > 0 {
			asm(&dst[0], &src[0], m, stride, mask, base)
		}
		planeFrom(m/8, dst, src, mask, base)
	}
}

func unplaneBlocks(asm func(dst, src *byte, n, stride int, mask, base byte)) func(dst, src []byte, mask, base byte) {
	return func(dst, src []byte, mask, base byte) {
		stride := planeSize(len(dst))
		src = src[:8*stride]
		m := len(dst) &^ 63
		if m > 0 {
			asm(&dst[0], &src[0], m, stride, mask, base)
		}
		unplaneFrom(m/8, dst, src, mask, base)
	}
}

//go:noescape
func splitAVX2(top, low, src *byte, n int)

//go:noescape
func joinAVX2(dst, top, low *byte, n int)

//go:noescape
func planeAVX2(dst, src *byte, n, stride int, mask, base byte)

//go:noescape
func unplaneAVX2(dst, src *byte, n, stride int, mask, base byte)

//go:noescape
func splitAVX512(top, low, src *byte, n int)

//go:noescape
func joinAVX512(dst, top, low *byte, n int)

//go:noescape
func planeAVX512(dst, src *byte, n, stride int, mask, base byte)

//go:noescape
func unplaneAVX512(dst, src *byte, n, stride int, mask, base byte)
