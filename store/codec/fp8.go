package codec

import (
	"encoding/binary"
	"fmt"
	"math"
)

// fp8 rows hold one fp32 scale and one e4m3 byte a value (the "fn" variant:
// largest value 448, no infinities, NaN 0x7f and 0xff): value = scale * e4m3.
const (
	fp8Max       = 448
	fp8NaN       = 0x7f
	fp8ScaleSize = 4
)

// FP8RowBytes is the size of an fp8 row of hidden values.
func FP8RowBytes(hidden int) int { return fp8ScaleSize + hidden }

// QuantizeRows appends src, whole rows of hidden bf16 or fp32 values, to dst as
// fp8 rows of FP8RowBytes(hidden). This loses precision: of a row whose largest
// magnitude is a, each value x comes back as some y with
//
//	|x - y| <= max(|x|, s/64) / 16 * (1 + 2^-20)   where s = max(a/448, 2^-126)
//
// so within a sixteenth of values down to a/28672 and within about a/458752
// below, and in bf16 with the rounding of that added (2^-9 |y|). The largest
// magnitude itself comes back within 2^-22 of it, zeros as zeros of their sign.
// Rows with NaN or infinities are refused. Equal rows give equal bytes on every
// machine.
func QuantizeRows(dst, src []byte, dtype string, hidden int) ([]byte, error) {
	size, err := quantizable(dtype, hidden)
	if err != nil {
		return dst, fmt.Errorf("quantize rows: %w", err)
	}
	if len(src)%(size*hidden) != 0 {
		return dst, fmt.Errorf("quantize rows: %d bytes are no whole rows of %d %s values", len(src), hidden, dtype)
	}
	values := make([]float32, hidden)
	for row := 0; len(src) > 0; row++ {
		var most float32
		for i := range values {
			v := widen(src[size*i:], size)
			if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
				return dst, fmt.Errorf("quantize row %d: value %d is %v, which fp8 rows cannot hold", row, i, v)
			}
			values[i] = v
			most = max(most, float32(math.Abs(float64(v))))
		}
		// Not below the normal numbers, or the quotient could overflow.
		scale := max(most/fp8Max, 0x1p-126)
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(scale))
		for _, v := range values {
			dst = append(dst, toE4M3(v/scale))
		}
		src = src[size*hidden:]
	}
	return dst, nil
}

// DequantizeRows appends src, whole fp8 rows of hidden values, to dst as bf16 or
// fp32 values. It refuses rows that QuantizeRows does not give: a scale that is
// no positive normal number, or a value that is NaN.
func DequantizeRows(dst, src []byte, dtype string, hidden int) ([]byte, error) {
	size, err := quantizable(dtype, hidden)
	if err != nil {
		return dst, fmt.Errorf("dequantize rows: %w", err)
	}
	if len(src)%FP8RowBytes(hidden) != 0 {
		return dst, fmt.Errorf("dequantize rows: %d bytes are no whole fp8 rows of %d values", len(src), hidden)
	}
	var e4m3 [256]float32
	for i := range e4m3 {
		e4m3[i] = fromE4M3(byte(i))
	}
	most := float32(math.MaxFloat32)
	if size == 2 {
		most = math.Float32frombits(0x7f7f0000)
	}
	for row := 0; len(src) > 0; row++ {
		scale := math.Float32frombits(binary.LittleEndian.Uint32(src))
		if !(scale >= 0x1p-126 && scale <= math.MaxFloat32) {
			return dst, fmt.Errorf("dequantize row %d: %w: scale %v", row, ErrMalformed, scale)
		}
		for i, c := range src[fp8ScaleSize:FP8RowBytes(hidden)] {
			if c&0x7f == fp8NaN {
				return dst, fmt.Errorf("dequantize row %d: %w: value %d is NaN", row, ErrMalformed, i)
			}
			// Rounding may take the largest numbers there are over the edge.
			v := min(max(scale*e4m3[c], -most), most)
			b := math.Float32bits(v)
			if size == 2 {
				dst = binary.LittleEndian.AppendUint16(dst, uint16((b+0x7fff+b>>16&1)>>16))
			} else {
				dst = binary.LittleEndian.AppendUint32(dst, b)
			}
		}
		src = src[FP8RowBytes(hidden):]
	}
	return dst, nil
}

// quantizable returns the bytes of a value that goes to fp8 and back.
func quantizable(dtype string, hidden int) (int, error) {
	if hidden <= 0 {
		return 0, fmt.Errorf("rows of %d values", hidden)
	}
	switch dtype {
	case "bf16":
		return 2, nil
	case "fp32":
		return 4, nil
	}
	return 0, fmt.Errorf("dtype %q (want bf16 or fp32)", dtype)
}

// widen reads a bf16 (size 2) or fp32 value.
func widen(b []byte, size int) float32 {
	if size == 2 {
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// toE4M3 rounds v to the nearest e4m3 value, ties to even, and to the largest
// beyond that.
func toE4M3(v float32) byte {
	b := math.Float32bits(v)
	sign := byte(b >> 24 & 0x80)
	b &= 0x7fffffff
	if b < 0x3c800000 { // below 2^-6, where the exponent ends: steps of 2^-9
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(b))*512))
	}
	b = (b + 0x7ffff + b>>20&1) >> 20
	return sign | byte(min(b-(127-7)<<3, fp8NaN-1))
}

// fromE4M3 returns the value of c, NaN for 0x7f and 0xff.
func fromE4M3(c byte) float32 {
	exp, mant := int(c>>3&0xf), float64(c&7)
	v := math.Ldexp(8+mant, exp-7-3)
	switch {
	case exp == 0:
		v = math.Ldexp(mant, -9)
	case c&0x7f == fp8NaN:
		v = math.NaN()
	}
	if c&0x80 != 0 {
		v = math.Copysign(v, -1)
	}
	return float32(v)
}
