package codec

import (
	"encoding/binary"
	"fmt"
)

// A Planes chunk is
//
//	base u8                 exponent that folding centres on
//	lens [8+low+tail/2]u32  encoded bytes of each segment
//	segments                bit planes 0 to 7, low bytes, lower halves
//
// A segment's length tells how it is stored: 0, all zero; its full size, as it
// is; anything between, one LZ4 block.

// segments returns how many segments a chunk has.
func (l layout) segments() int { return 8 + l.low + l.tail/2 }

// plainSegments returns how many of them hold no exponent bits.
func (l layout) plainSegments() int { return l.segments() - 8 + int(l.expShift) }

func (e *Encoder) appendPlanes(dst, raw []byte) ([]byte, error) {
	l := e.layout
	e.split.take(e.k, l, raw)
	base := mode(e.split.top, l.expMask())
	size := planeSize(len(e.split.top))
	e.zigzag = grow(e.zigzag, 8*size)
	e.k.plane(e.zigzag, e.split.top, l.expMask(), base)

	dst = append(dst, base)
	lens := len(dst)
	dst = append(dst, make([]byte, 4*l.segments())...)
	for i := range l.segments() {
		seg := e.segment(i, size)
		start := len(dst)
		var err error
		if dst, err = e.appendSegment(dst, seg); err != nil {
			return dst, err
		}
		binary.LittleEndian.PutUint32(dst[lens+4*i:], uint32(len(dst)-start))
	}
	return dst, nil
}

// segment returns segment i of the chunk taken apart.
func (e *Encoder) segment(i, size int) []byte {
	switch {
	case i < 8:
		return e.zigzag[i*size : (i+1)*size]
	case i == 8:
		return e.split.low
	}
	return e.split.tail
}

// appendSegment appends seg in the shortest of its three forms.
func (e *Encoder) appendSegment(dst, seg []byte) ([]byte, error) {
	if allZero(seg) {
		return dst, nil
	}
	// Most segments do not shrink; a look at the start of one tells cheaply.
	const probe = 2048
	if len(seg) > 4*probe {
		mid := len(seg) / 2
		out, err := e.appendLZ4(dst, seg[mid:mid+probe])
		if err != nil || len(out)-len(dst) > probe*98/100 {
			return append(dst, seg...), err
		}
	}
	out, err := e.appendLZ4(dst, seg)
	if err != nil || len(out)-len(dst) >= len(seg) {
		return append(dst, seg...), err
	}
	return out, nil
}

// mode returns the most frequent exponent among up to 4096 values spread over
// the chunk, the lowest of several. It need not be exact: it only decides how
// well the chunk compresses.
func mode(top []byte, mask byte) byte {
	var hist [256]uint32
	step := max(1, len(top)/4096|1)
	for i := 0; i < len(top); i += step {
		hist[top[i]&mask]++
	}
	best := 0
	for i, n := range hist {
		if n > hist[best] {
			best = i
		}
	}
	return byte(best)
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func (d *Decoder) decodePlanes(dst, enc []byte) error {
	l := d.layout
	n := len(dst) / l.width
	size := planeSize(n)
	if len(enc) < 1+4*l.segments() {
		return fmt.Errorf("%w: header cut short", ErrMalformed)
	}
	base, lens := enc[0], enc[1:1+4*l.segments()]
	enc = enc[1+len(lens):]
	if base&^l.expMask() != 0 {
		return fmt.Errorf("%w: base %#x is no exponent", ErrMalformed, base)
	}
	d.split.resize(l, n)
	d.planes = grow(d.planes, 8*size)
	for i := range l.segments() {
		seg := d.segment(i, size)
		m := binary.LittleEndian.Uint32(lens[4*i:])
		if uint64(m) > uint64(len(enc)) {
			return fmt.Errorf("%w: segment %d has %d bytes, %d are left", ErrMalformed, i, m, len(enc))
		}
		if err := decodeSegment(seg, enc[:m]); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		if i < 8 && spareBits(seg, n) {
			return fmt.Errorf("segment %d: %w: spare bits are set", i, ErrMalformed)
		}
		enc = enc[m:]
	}
	if len(enc) != 0 {
		return fmt.Errorf("%w: %d spare bytes at the end", ErrMalformed, len(enc))
	}
	d.k.unplane(d.split.top, d.planes, l.expMask(), base)
	d.split.put(d.k, l, dst)
	return nil
}

// segment returns the room for segment i.
func (d *Decoder) segment(i, size int) []byte {
	switch {
	case i < 8:
		return d.planes[i*size : (i+1)*size]
	case i == 8:
		return d.split.low
	}
	return d.split.tail
}

// spareBits reports whether a bit field of n bits has ones after those.
func spareBits(b []byte, n int) bool { return n%8 != 0 && b[len(b)-1]>>(n%8) != 0 }

// decodeSegment fills seg.
func decodeSegment(seg, src []byte) error {
	switch {
	case len(src) > len(seg):
		return fmt.Errorf("%w: %d bytes for a segment of %d", ErrMalformed, len(src), len(seg))
	case len(src) == 0:
		clear(seg)
	case len(src) == len(seg):
		copy(seg, src)
	default:
		return unLZ4(seg, src)
	}
	return nil
}
