package extract

import (
	"encoding/binary"
	"fmt"
)

// values knows what the values of a dtype may be. All three dtypes have a sign
// bit on top, then exponent, then mantissa, so that eight bytes of values can be
// looked at at once.
type values struct {
	exponent uint64 // exponent bits of eight bytes of values
	carry    uint64 // added to them, overflows into the sign bit if all are ones
	sign     uint64
}

func valuesOf(dtype string) (values, error) {
	switch dtype {
	case "bf16":
		return values{0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000}, nil
	case "fp16":
		return values{0x7c007c007c007c00, 0x0400040004000400, 0x8000800080008000}, nil
	case "fp32":
		return values{0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000}, nil
	}
	return values{}, fmt.Errorf("extract: rows in %q cannot be checked: engines give bf16, fp16 or fp32", dtype)
}

// check looks at one row of one layer: bad is set where a value is infinite or
// not a number, zero where all are zero. A row has a whole number of values.
func (v values) check(row []byte) (bad, zero bool) {
	var over, any uint64
	i := 0
	for ; i+32 <= len(row); i += 32 {
		b := row[i : i+32 : i+32]
		x0, x1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		x2, x3 := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
		over |= (x0&v.exponent + v.carry) | (x1&v.exponent + v.carry) | (x2&v.exponent + v.carry) | (x3&v.exponent + v.carry)
		any |= x0 | x1 | x2 | x3
	}
	for ; i < len(row); i += 8 {
		var b [8]byte
		copy(b[:], row[i:]) // zeros behind the end are finite
		x := binary.LittleEndian.Uint64(b[:])
		over |= x&v.exponent + v.carry
		any |= x
	}
	return over&v.sign != 0, any&^v.sign == 0
}

// checkRows looks at rows [first, first+n) of data, [n, layers, rowBytes], and
// names the first bad one.
func (v values) checkRows(data []byte, first, rowBytes int, layers []int) error {
	for i := 0; i*rowBytes < len(data); i++ {
		bad, zero := v.check(data[i*rowBytes : (i+1)*rowBytes])
		if !bad && !zero {
			continue
		}
		what := "not finite"
		if zero {
			what = "all zero"
		}
		return fmt.Errorf("token %d layer %d: %s", first+i/len(layers), layers[i%len(layers)], what)
	}
	return nil
}
