package codec

import (
	"encoding/binary"
	"fmt"
)

// A Dense chunk is
//
//	lens [expShift+low+tail/2]u32  encoded bytes of each segment
//	segments                       mantissa planes, low bytes, lower halves
//	tree                           of the exponents
//
// Segments are stored as those of a Planes chunk. The mantissa planes are bit
// planes 0 to expShift-1 of the top bytes.

// plain calls f for every segment of a chunk that is no exponent plane.
func (l layout) plain(f func(segment int) error) error {
	for i := range l.segments() {
		if i < int(l.expShift) || i >= 8 {
			if err := f(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Encoder) appendDense(dst, raw []byte) ([]byte, error) {
	l := e.layout
	e.split.take(e.k, l, raw)
	top := e.split.top
	size := planeSize(len(top))
	if l.expShift > 0 {
		e.zigzag = grow(e.zigzag, 8*size)
		e.k.plane(e.zigzag, top, l.expMask(), 0)
		for i := range top {
			top[i] &= l.expMask()
		}
	}
	at := len(dst)
	dst = append(dst, make([]byte, 4*l.plainSegments())...)
	err := l.plain(func(i int) (err error) {
		start := len(dst)
		dst, err = e.appendSegment(dst, e.segment(i, size))
		binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-start))
		at += 4
		return err
	})
	if err != nil {
		return dst, err
	}
	e.tree.plan(histogram(top))
	e.tree.start(len(top))
	if e.tree.inner > 0 {
		e.k.encodeTree(&e.tree, top)
	}
	return e.tree.append(dst, len(top)), nil
}

func (d *Decoder) decodeDense(dst, enc []byte) error {
	l := d.layout
	n := len(dst) / l.width
	size := planeSize(n)
	at, rest := 0, 4*l.plainSegments()
	if len(enc) < rest {
		return fmt.Errorf("%w: header cut short", ErrMalformed)
	}
	d.split.resize(l, n)
	if l.expShift > 0 {
		d.planes = grow(d.planes, 8*size)
		clear(d.planes)
	}
	err := l.plain(func(i int) error {
		m := int64(binary.LittleEndian.Uint32(enc[at:]))
		at += 4
		if m > int64(len(enc)-rest) {
			return fmt.Errorf("%w: segment %d has %d bytes, %d are left", ErrMalformed, i, m, len(enc)-rest)
		}
		src := enc[rest : rest+int(m)]
		rest += int(m)
		if err := decodeSegment(d.segment(i, size), src); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		if i < 8 && spareBits(d.segment(i, size), n) {
			return fmt.Errorf("segment %d: %w: spare bits are set", i, ErrMalformed)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := d.tree.parse(enc[rest:], n, l.expMask()); err != nil {
		return err
	}
	d.exponents()
	d.split.put(d.k, l, dst)
	return nil
}

// exponents fills the top bytes from the tree and the mantissa planes.
func (d *Decoder) exponents() {
	l, top := d.layout, d.split.top
	if d.tree.inner == 0 {
		for i := range top {
			top[i] = d.tree.symbol[0]
		}
	} else {
		d.k.decodeTree(&d.tree, top)
	}
	if l.expShift == 0 {
		return
	}
	d.low = grow(d.low, len(top))
	d.k.unplane(d.low, d.planes, l.expMask(), 0)
	for i, m := range d.low {
		top[i] |= m
	}
}

// histogram counts the symbols of top, or every eleventh where they are many:
// hidden sizes are no multiples of that, so all columns have their say.
func histogram(top []byte) (hist *[256]uint32, sampled bool) {
	const stride, many = 11, 1 << 14
	var h [4][256]uint32
	step := 1
	if len(top) > many {
		step = stride
	}
	i := 0
	for ; i+3*step < len(top); i += 4 * step {
		h[0][top[i]]++
		h[1][top[i+step]]++
		h[2][top[i+2*step]]++
		h[3][top[i+3*step]]++
	}
	for ; i < len(top); i += step {
		h[0][top[i]]++
	}
	for s := range h[0] {
		h[0][s] += h[1][s] + h[2][s] + h[3][s]
	}
	return &h[0], step > 1
}
