package codec

import "fmt"

// layout says where a value of some dtype keeps its exponent. Values are
// little-endian. The upper half of a value (all of it, where it has one or two
// bytes) is rotated left by one, which puts the sign lowest and makes the
// exponent the top expBits bits of the top byte.
type layout struct {
	width    int  // bytes a value
	low      int  // bytes of the upper half below the top one: 0 or 1
	tail     int  // bytes of the lower half, stored as they are: 0 or 2
	expShift uint // mantissa bits that share the top byte with the exponent
}

func layoutOf(dtype string) (layout, error) {
	switch dtype {
	case "bf16":
		return layout{width: 2, low: 1}, nil
	case "fp16":
		return layout{width: 2, low: 1, expShift: 3}, nil
	case "fp32":
		return layout{width: 4, low: 1, tail: 2}, nil
	case "fp8":
		return layout{width: 1, expShift: 4}, nil
	}
	return layout{}, fmt.Errorf("unknown dtype %q (want bf16, fp16, fp32 or fp8)", dtype)
}

// expMask covers the exponent's bits in the top byte.
func (l layout) expMask() byte { return 0xff << l.expShift }

// split is a chunk of n values taken apart.
type split struct {
	top  []byte // n: exponent, and mantissa bits below it
	low  []byte // n, or none: mantissa and sign
	tail []byte // 2n, or none: the lower halves of fp32 values
	half []byte // 2n, scratch: the upper halves of fp32 values
}

func (s *split) resize(l layout, n int) {
	s.top = grow(s.top, (n+63)&^63)[:n] // decodeTree writes by 64
	s.low = grow(s.low, n*l.low)
	s.tail = grow(s.tail, n*l.tail)
	if l.tail > 0 {
		s.half = grow(s.half, 2*n)
	}
}

// take takes raw apart.
func (s *split) take(k kernels, l layout, raw []byte) {
	s.resize(l, len(raw)/l.width)
	switch l.width {
	case 1:
		rotate8(s.top, raw)
	case 2:
		k.split(s.top, s.low, raw)
	case 4:
		halve(s.half, s.tail, raw)
		k.split(s.top, s.low, s.half)
	}
}

// put is the inverse of take.
func (s *split) put(k kernels, l layout, raw []byte) {
	switch l.width {
	case 1:
		unrotate8(raw, s.top)
	case 2:
		k.join(raw, s.top, s.low)
	case 4:
		k.join(s.half, s.top, s.low)
		unhalve(raw, s.half, s.tail)
	}
}
