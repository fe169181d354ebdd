// Package tensor names the number formats of weights and decodes them.
package tensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// Type is a number format. The names are those of safetensors and, for block
// formats, of GGUF.
type Type string

// The formats that can be decoded.
const (
	F32  Type = "F32"
	F16  Type = "F16"
	BF16 Type = "BF16"
	Q8_0 Type = "Q8_0"
	Q4_0 Type = "Q4_0"
	Q4_1 Type = "Q4_1"
	Q5_0 Type = "Q5_0"
	Q5_1 Type = "Q5_1"
	Q4_K Type = "Q4_K"
	Q5_K Type = "Q5_K"
	Q6_K Type = "Q6_K"
)

// Block returns how many values a block of t holds and its bytes; 0, 0 for a
// format that cannot be decoded.
func (t Type) Block() (values, bytes int) {
	switch t {
	case F32:
		return 1, 4
	case F16, BF16:
		return 1, 2
	case Q8_0:
		return 32, 34
	case Q4_0:
		return 32, 18
	case Q4_1:
		return 32, 20
	case Q5_0:
		return 32, 22
	case Q5_1:
		return 32, 24
	case Q4_K:
		return 256, 144
	case Q5_K:
		return 256, 176
	case Q6_K:
		return 256, 210
	}
	return 0, 0
}

// Plain reports whether t stores each value by itself.
func (t Type) Plain() bool { return t == F32 || t == F16 || t == BF16 }

// Tensor is a named array in mapped memory, row-major, the last dimension
// contiguous.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int
	Data  []byte
}

// Size returns the bytes of an array of type t and the given shape. It fails
// where a row is no whole number of blocks or the product overflows.
func Size(t Type, shape []int) (int, error) {
	values, bytes := t.Block()
	if values == 0 {
		return 0, fmt.Errorf("number format %q is none of those read here (F32, F16, BF16 and, in GGUF files, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)", t)
	}
	n := 1
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("negative dimension %d", d)
		}
		if d > 0 && n > math.MaxInt/256/d {
			return 0, fmt.Errorf("shape %v is too large", shape)
		}
		n *= d
	}
	if last := lastDim(shape); last%values != 0 {
		return 0, fmt.Errorf("rows of %d values are no whole number of %s blocks of %d", last, t, values)
	}
	return n / values * bytes, nil
}

func lastDim(shape []int) int {
	if len(shape) == 0 {
		return 1
	}
	return shape[len(shape)-1]
}

// Matrix returns t as rows and columns. A vector is one row.
func (t Tensor) Matrix() (Matrix, error) {
	want, err := Size(t.Type, t.Shape)
	if err != nil {
		return Matrix{}, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if want != len(t.Data) {
		return Matrix{}, fmt.Errorf("tensor %q: shape %v of %s takes %d bytes, it has %d", t.Name, t.Shape, t.Type, want, len(t.Data))
	}
	m := Matrix{Name: t.Name, Type: t.Type, Rows: 1, Cols: lastDim(t.Shape), Data: t.Data}
	for _, d := range t.Shape[:max(0, len(t.Shape)-1)] {
		m.Rows *= d
	}
	return m, nil
}

// Matrix is a two-dimensional array in mapped memory, row-major.
type Matrix struct {
	Name       string
	Type       Type
	Rows, Cols int
	Data       []byte
}

// RowBytes is the size of one row.
func (m Matrix) RowBytes() int {
	values, bytes := m.Type.Block()
	return m.Cols / values * bytes
}

// Raw returns the bytes of row i.
func (m Matrix) Raw(i int) []byte {
	n := m.RowBytes()
	return m.Data[i*n : (i+1)*n]
}

// Row decodes row i into dst, which holds Cols values.
func (m Matrix) Row(i int, dst []float32) { Decode(m.Type, m.Raw(i), dst[:m.Cols]) }

func littleEndian() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}

// Decode decodes len(dst) values of type t from src. It panics where src is
// too short or t cannot be decoded: callers have checked both.
func Decode(t Type, src []byte, dst []float32) {
	switch t {
	case F32:
		if littleEndian() {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), src[:4*len(dst)])
			return
		}
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		decodeBlocks(t, src, dst)
	}
}

// BF16ToF32 widens a bfloat16; it is exact.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds to the nearest bfloat16, ties to even. NaN stays a quiet NaN.
func F32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// F16ToF32 widens an IEEE half; it is exact.
func F16ToF32(h uint16) float32 {
	sign, exp, man := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0xff<<23 | man<<13)
	case exp != 0:
		return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
	case man == 0:
		return math.Float32frombits(sign)
	}
	exp = 113
	for man&1024 == 0 {
		man <<= 1
		exp--
	}
	return math.Float32frombits(sign | exp<<23 | man&1023<<13)
}

// F32ToF16 rounds to the nearest IEEE half, ties to even. What is too large
// becomes an infinity.
func F32ToF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u>>16) & 0x8000
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00
	case u >= 0x47800000:
		return sign | 0x7c00
	case u < 0x38800000: // subnormal halves: let float addition round
		r := math.Float32frombits(u) + 0.5
		return sign | uint16(math.Float32bits(r)-0x3f000000)
	}
	return sign | uint16((u-0x38000000+0xfff+u>>13&1)>>13)
}
