package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
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

// RowLoss is what quantizing rows cost, in relative errors of rows: the length
// of what was lost over the length of the row.
type RowLoss struct {
	Rows     int64
	Sum, Max float64
}

// Quantizer turns rows into fp8 rows. It serves one goroutine at a time.
type Quantizer struct {
	dtype  string
	size   int // bytes of a value given
	hidden int
	values []float32
	e4m3   [256]float64
}

// NewQuantizer makes a Quantizer of rows of hidden bf16, fp16 or fp32 values.
func NewQuantizer(dtype string, hidden int) (*Quantizer, error) {
	if hidden <= 0 {
		return nil, fmt.Errorf("quantize rows of %d values", hidden)
	}
	q := &Quantizer{dtype: dtype, size: 2, hidden: hidden, values: make([]float32, hidden)}
	for i, v := range e4m3Values() {
		q.e4m3[i] = float64(v)
	}
	switch dtype {
	case "bf16", "fp16":
	case "fp32":
		q.size = 4
	default:
		return nil, fmt.Errorf("quantize rows: dtype %q (want bf16, fp16 or fp32)", dtype)
	}
	return q, nil
}

// Rows appends src, whole rows, to dst as fp8 rows of FP8RowBytes(hidden) and
// returns what that cost. This loses precision: of a row whose largest magnitude
// is a, each value x comes back as some y with
//
//	|x - y| <= max(|x|, s/64) / 16 * (1 + 2^-20)   where s = max(a/448, 2^-126)
//
// so within a sixteenth of values down to a/28672 and within about a/458752
// below, and in bf16 with the rounding of that added (2^-9 |y|). The largest
// magnitude itself comes back within 2^-22 of it, zeros as zeros of their sign.
// Rows with NaN or infinities are refused. Equal rows give equal bytes and equal
// losses on every machine.
func (q *Quantizer) Rows(dst, src []byte) ([]byte, RowLoss, error) {
	var loss RowLoss
	step := q.size * q.hidden
	if len(src)%step != 0 {
		return dst, loss, fmt.Errorf("quantize rows: %d bytes are no whole rows of %d %s values", len(src), q.hidden, q.dtype)
	}
	for ; len(src) > 0; src = src[step:] {
		most, ok := q.load(src[:step])
		if !ok {
			return dst, loss, fmt.Errorf("quantize row %d: it has values that are not finite, which fp8 rows cannot hold", loss.Rows)
		}
		var off float64
		dst, off = q.row(dst, most)
		loss.Rows++
		loss.Sum += off
		loss.Max = max(loss.Max, off)
	}
	return dst, loss, nil
}

// load reads a row; most is its largest magnitude.
func (q *Quantizer) load(src []byte) (most float32, finite bool) {
	values, top := q.values, uint32(0)
	switch q.dtype {
	case "bf16":
		for i := range values {
			b := uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16
			values[i], top = math.Float32frombits(b), max(top, b&0x7fffffff)
		}
	case "fp16":
		for i := range values {
			b := halfBits(binary.LittleEndian.Uint16(src[2*i:]))
			values[i], top = math.Float32frombits(b), max(top, b&0x7fffffff)
		}
	default:
		for i := range values {
			b := binary.LittleEndian.Uint32(src[4*i:])
			values[i], top = math.Float32frombits(b), max(top, b&0x7fffffff)
		}
	}
	return math.Float32frombits(top), top < 0x7f800000
}

// row appends the row that was loaded and returns its relative error.
func (q *Quantizer) row(dst []byte, most float32) ([]byte, float64) {
	// Not below the normal numbers, or the quotient could overflow.
	scale := max(most/fp8Max, 0x1p-126)
	dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(scale))
	at := len(dst)
	dst = slices.Grow(dst, q.hidden)[:at+q.hidden]
	values, wide := q.values, float64(scale)
	out := dst[at:][:len(values)]
	var lost, all float64
	for i, v := range values {
		c := toE4M3(v / scale)
		out[i] = c
		x := float64(v)
		d := x - wide*q.e4m3[c] // the product is exact
		// Rounded before they are added, so that no machine fuses the two.
		lost += float64(d * d)
		all += float64(x * x)
	}
	if all == 0 {
		return dst, 0
	}
	return dst, math.Sqrt(lost / all)
}

// DequantizeRows appends src, whole fp8 rows of hidden values, to dst as bf16 or
// fp32 values. It refuses rows that QuantizeRows does not give: a scale that is
// no positive normal number, or a value that is NaN.
func DequantizeRows(dst, src []byte, dtype string, hidden int) ([]byte, error) {
	size := map[string]int{"bf16": 2, "fp32": 4}[dtype]
	if size == 0 || hidden <= 0 {
		return dst, fmt.Errorf("dequantize rows of %d values to dtype %q (want bf16 or fp32)", hidden, dtype)
	}
	if len(src)%FP8RowBytes(hidden) != 0 {
		return dst, fmt.Errorf("dequantize rows: %d bytes are no whole fp8 rows of %d values", len(src), hidden)
	}
	e4m3 := e4m3Values()
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

// halfBits returns the bits of an fp16 value as fp32.
func halfBits(h uint16) uint32 {
	sign, rest := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case rest >= 0x7c00: // infinity and NaN
		return sign | 0x7f800000 | rest<<13
	case rest >= 0x0400:
		return sign | rest<<13 + (127-15)<<23
	}
	return sign | math.Float32bits(float32(rest)*0x1p-24)
}

// toE4M3 rounds v to the nearest e4m3 value, ties to even, and to the largest
// beyond that.
func toE4M3(v float32) byte {
	b := math.Float32bits(v)
	a := b & 0x7fffffff
	c := min((a+0x7ffff+a>>20&1)>>20-(127-7)<<3, fp8NaN-1)
	if a < 0x3c800000 { // below 2^-6, where the exponent ends: steps of 2^-9, which are those of numbers at 2^14
		c = math.Float32bits(math.Float32frombits(a) + 0x1p14)
	}
	return byte(b>>24&0x80) | byte(c)
}

func e4m3Values() *[256]float32 {
	var v [256]float32
	for i := range v {
		v[i] = fromE4M3(byte(i))
	}
	return &v
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
