package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

var errShort = errors.New("the file ends here")

// cursor reads from b and stops at the first error; at is the offset of what
// was read last.
type cursor struct {
	b    []byte
	at   int
	next int
	err  error
}

func (c *cursor) bytes(n uint64) []byte {
	if c.err != nil {
		return nil
	}
	c.at = c.next
	if n > uint64(len(c.b)-c.next) {
		c.err = errShort
		return nil
	}
	c.next += int(n)
	return c.b[c.at:c.next]
}

func (c *cursor) u32() uint32 {
	b := c.bytes(4)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b)
}

func (c *cursor) u64() uint64 {
	b := c.bytes(8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (c *cursor) str() string { return string(c.bytes(c.u64())) }

func (c *cursor) value(k Kind) Value {
	switch {
	case k == String:
		return Value{Kind: k, Str: c.str()}
	case k == Array:
		return c.array()
	case k.size() == 0:
		if c.err == nil {
			c.err = fmt.Errorf("value of unknown type %d", k)
		}
		return Value{}
	}
	b := c.bytes(uint64(k.size()))
	if b == nil {
		return Value{}
	}
	return scalar(k, b)
}

func scalar(k Kind, b []byte) Value {
	v := Value{Kind: k}
	switch k {
	case Uint8, Bool:
		v.Int = int64(b[0])
	case Int8:
		v.Int = int64(int8(b[0]))
	case Uint16:
		v.Int = int64(binary.LittleEndian.Uint16(b))
	case Int16:
		v.Int = int64(int16(binary.LittleEndian.Uint16(b)))
	case Uint32:
		v.Int = int64(binary.LittleEndian.Uint32(b))
	case Int32:
		v.Int = int64(int32(binary.LittleEndian.Uint32(b)))
	case Uint64, Int64:
		v.Int = int64(binary.LittleEndian.Uint64(b))
	case Float32:
		v.Float = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case Float64:
		v.Float = math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return v
}

// array steps over an array and keeps its bytes. Arrays of arrays, which no
// model file has, are refused.
func (c *cursor) array() Value {
	v := Value{Kind: Array, Elem: Kind(c.u32())}
	n := c.u64()
	if c.err != nil {
		return v
	}
	if n > uint64(len(c.b)) {
		c.err = fmt.Errorf("an array of %d values does not fit in the file", n)
		return v
	}
	v.Count = int(n)
	from := c.next
	if v.Elem == String {
		for i := uint64(0); i < n && c.err == nil; i++ {
			c.bytes(c.u64())
		}
	} else if v.Elem.size() == 0 {
		c.err = fmt.Errorf("an array of type %d is not supported", v.Elem)
	} else {
		c.bytes(n * uint64(v.Elem.size()))
	}
	if c.err == nil {
		v.Raw = c.b[from:c.next]
	}
	return v
}
