package backendtest

import (
	"encoding/binary"
	"math"
)

// value decodes element i of data.
func value(data []byte, dtype string, i int) float64 {
	switch dtype {
	case "bf16":
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16))
	case "fp16":
		return fp16(binary.LittleEndian.Uint16(data[2*i:]))
	default:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	}
}

func fp16(h uint16) float64 {
	e, m := int(h>>10&31), float64(h&0x3ff)
	v := math.Ldexp(1+m/1024, e-15)
	switch e {
	case 0:
		v = math.Ldexp(m/1024, -14)
	case 31:
		v = math.Inf(1)
		if m != 0 {
			v = math.NaN()
		}
	}
	if h>>15 != 0 {
		return -v
	}
	return v
}

// cosine compares two rows of n values; NaN where one is zero or not finite.
func cosine(a, b []byte, dtype string, n int) float64 {
	var ab, aa, bb float64
	for i := range n {
		x, y := value(a, dtype, i), value(b, dtype, i)
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}
