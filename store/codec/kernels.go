package codec

import "encoding/binary"

// kernels are the inner loops that have a faster form on some machines. All
// forms give the same bytes for all lengths and alignments.
type kernels struct {
	name string

	// split rotates the n 16-bit values of src left by one and deals their
	// upper bytes to top and their lower bytes to low.
	split func(top, low, src []byte)

	// join is the inverse of split.
	join func(dst, top, low []byte)

	// plane centres the exponents of src (the bits in mask) on base, folds
	// their sign into the lowest exponent bit and deals bit b of byte i to
	// bit i%8 of byte i/8 of plane b. The eight planes follow each other,
	// planeSize(len(src)) bytes each; spare bits are zero.
	plane func(dst, src []byte, mask, base byte)

	// unplane is the inverse of plane.
	unplane func(dst, src []byte, mask, base byte)

	// encodeTree and decodeTree send symbols down a tree and up again. top
	// has room up to the next multiple of 64 bytes, in which decodeTree may
	// leave anything.
	encodeTree func(t *tree, top []byte)
	decodeTree func(t *tree, top []byte)
}

func portableKernels() kernels {
	return kernels{
		name:       "portable",
		split:      splitGo,
		join:       joinGo,
		plane:      planeGo,
		unplane:    unplaneGo,
		encodeTree: encodeTreeGo,
		decodeTree: decodeTreeGo,
	}
}

const (
	bit0s  = 0x0101010101010101
	lanes2 = 0x0001000100010001
)

func splitGo(top, low, src []byte) {
	n := len(src) / 2
	top, low = top[:n], low[:n]
	i := 0
	for ; i+8 <= n; i += 8 {
		a := rotl16(binary.LittleEndian.Uint64(src[2*i:]))
		b := rotl16(binary.LittleEndian.Uint64(src[2*i+8:]))
		binary.LittleEndian.PutUint64(low[i:], squeeze(a)|squeeze(b)<<32)
		binary.LittleEndian.PutUint64(top[i:], squeeze(a>>8)|squeeze(b>>8)<<32)
	}
	for ; i < n; i++ {
		v := binary.LittleEndian.Uint16(src[2*i:])
		v = v<<1 | v>>15
		low[i], top[i] = byte(v), byte(v>>8)
	}
}

func joinGo(dst, top, low []byte) {
	n := len(dst) / 2
	top, low = top[:n], low[:n]
	i := 0
	for ; i+8 <= n; i += 8 {
		l := binary.LittleEndian.Uint64(low[i:])
		t := binary.LittleEndian.Uint64(top[i:])
		a := spread(l&0xffffffff) | spread(t&0xffffffff)<<8
		b := spread(l>>32) | spread(t>>32)<<8
		binary.LittleEndian.PutUint64(dst[2*i:], rotr16(a))
		binary.LittleEndian.PutUint64(dst[2*i+8:], rotr16(b))
	}
	for ; i < n; i++ {
		v := uint16(low[i]) | uint16(top[i])<<8
		binary.LittleEndian.PutUint16(dst[2*i:], v>>1|v<<15)
	}
}

// rotl16 rotates each of four 16-bit lanes left by one; rotr16 right.
func rotl16(x uint64) uint64 { return x&^(lanes2<<15)<<1 | x>>15&lanes2 }
func rotr16(x uint64) uint64 { return x>>1&^(lanes2<<15) | x&lanes2<<15 }

// squeeze packs the even bytes of x into its lower half; spread undoes it.
func squeeze(x uint64) uint64 {
	x &= 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return (x | x>>16) & 0x00000000ffffffff
}

func spread(x uint64) uint64 {
	x = (x | x<<16) & 0x0000ffff0000ffff
	return (x | x<<8) & 0x00ff00ff00ff00ff
}

// transpose8 transposes the 8x8 bit matrix whose rows are the bytes of x.
func transpose8(x uint64) uint64 {
	t := (x ^ x>>7) & 0x00aa00aa00aa00aa
	x ^= t ^ t<<7
	t = (x ^ x>>14) & 0x0000cccc0000cccc
	x ^= t ^ t<<14
	t = (x ^ x>>28) & 0x00000000f0f0f0f0
	return x ^ t ^ t<<28
}

// fold centres the exponent in t and folds its sign: 0, -1, 1, -2, … become
// 0, 1, 2, 3, … in units of the exponent's lowest bit, modulo its width.
func fold(t, mask, base byte) byte {
	d := t&mask - base
	return (d<<1^byte(int8(d)>>7))&mask | t&^mask
}

// unfold is the inverse of fold.
func unfold(f, mask, base byte) byte {
	z := f & mask
	unit := mask & -mask
	d := z >> 1 & mask
	if z&unit != 0 {
		d = ^d & mask
	}
	return (d+base)&mask | f&^mask
}

// foldTable tabulates fold or unfold for one chunk.
func foldTable(f func(t, mask, base byte) byte, mask, base byte) *[256]byte {
	var t [256]byte
	for i := range t {
		t[i] = f(byte(i), mask, base)
	}
	return &t
}

// planeSize returns the bytes of one bit plane of n values.
func planeSize(n int) int { return (n + 7) / 8 }

func planeGo(dst, src []byte, mask, base byte)   { planeFrom(0, dst, src, mask, base) }
func unplaneGo(dst, src []byte, mask, base byte) { unplaneFrom(0, dst, src, mask, base) }

// planeFrom is planeGo from byte j of each plane on.
func planeFrom(j int, dst, src []byte, mask, base byte) {
	size := planeSize(len(src))
	if j == size {
		return
	}
	t := foldTable(fold, mask, base)
	for ; j < size; j++ {
		var x uint64
		if rest := src[8*j:]; len(rest) >= 8 {
			x = uint64(t[rest[0]]) | uint64(t[rest[1]])<<8 | uint64(t[rest[2]])<<16 | uint64(t[rest[3]])<<24 |
				uint64(t[rest[4]])<<32 | uint64(t[rest[5]])<<40 | uint64(t[rest[6]])<<48 | uint64(t[rest[7]])<<56
		} else {
			for i, v := range rest {
				x |= uint64(t[v]) << (8 * i)
			}
		}
		x = transpose8(x)
		for b := range 8 {
			dst[b*size+j] = byte(x >> (8 * b))
		}
	}
}

// unplaneFrom is unplaneGo from byte j of each plane on.
func unplaneFrom(j int, dst, src []byte, mask, base byte) {
	size := planeSize(len(dst))
	if j == size {
		return
	}
	t := foldTable(unfold, mask, base)
	for ; j < size; j++ {
		var x uint64
		for b := range 8 {
			x |= uint64(src[b*size+j]) << (8 * b)
		}
		x = transpose8(x)
		if rest := dst[8*j:]; len(rest) >= 8 {
			rest[0], rest[1], rest[2], rest[3] = t[byte(x)], t[byte(x>>8)], t[byte(x>>16)], t[byte(x>>24)]
			rest[4], rest[5], rest[6], rest[7] = t[byte(x>>32)], t[byte(x>>40)], t[byte(x>>48)], t[byte(x>>56)]
		} else {
			for i := range rest {
				rest[i] = t[byte(x>>(8*i))]
			}
		}
	}
}

// rotate8 rotates each byte left by one; unrotate8 right.
func rotate8(dst, src []byte) {
	for i, v := range src {
		dst[i] = v<<1 | v>>7
	}
}

func unrotate8(dst, src []byte) {
	for i, v := range src {
		dst[i] = v>>1 | v<<7
	}
}

// halve deals the upper and lower halves of 32-bit values to hi and lo.
func halve(hi, lo, src []byte) {
	for len(src) >= 8 {
		x := binary.LittleEndian.Uint64(src)
		binary.LittleEndian.PutUint32(lo, uint32(x&0xffff|x>>16&0xffff0000))
		binary.LittleEndian.PutUint32(hi, uint32(x>>16&0xffff|x>>32&0xffff0000))
		src, hi, lo = src[8:], hi[4:], lo[4:]
	}
	if len(src) >= 4 {
		copy(lo, src[:2])
		copy(hi, src[2:4])
	}
}

// unhalve is the inverse of halve.
func unhalve(dst, hi, lo []byte) {
	for len(dst) >= 8 {
		h, l := uint64(binary.LittleEndian.Uint32(hi)), uint64(binary.LittleEndian.Uint32(lo))
		binary.LittleEndian.PutUint64(dst, l&0xffff|h&0xffff<<16|l>>16<<32|h>>16<<48)
		dst, hi, lo = dst[8:], hi[4:], lo[4:]
	}
	if len(dst) >= 4 {
		copy(dst, lo[:2])
		copy(dst[2:], hi[:2])
	}
}
