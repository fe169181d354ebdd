package ingest

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
)

// kind is what a field of a record turned out to be.
type kind uint8

const (
	absent kind = iota // missing or null
	numbers
	text
	other
)

// array is a field that should be a list of numbers, or one such list in a
// list. Values are 32-bit two's complement. An element that is anything else
// leaves a zero in its place and is remembered where it is the first: whether
// that matters depends on padding, known only later.
type array struct {
	kind  kind
	v     []uint32
	rows  int // lists in the list, 0 where not nested
	shape bool
	bad   int // index of the first element that is neither a whole 32-bit number nor a boolean; math.MaxInt where none
	what  string
	bools int // index of the first boolean; math.MaxInt where none
}

func (a *array) reset() {
	*a = array{v: a.v[:0], bad: math.MaxInt, bools: math.MaxInt}
}

// misshapen says that a is neither a list nor one list in a list.
func (a *array) misshapen() bool { return a.kind == numbers && (a.shape || a.rows > 1) }

// given says that the field has a value.
func (a *array) given() bool { return a.kind != absent }

func (a *array) noteBad(what []byte) {
	if a.bad == math.MaxInt {
		a.bad = len(a.v)
		a.what = string(what[:min(len(what), 40)])
	}
}

// array reads the value at s into a.
func (s *scanner) array(a *array) bool {
	a.reset()
	switch c := s.buf[s.i]; {
	case c == '[':
		a.kind = numbers
		return s.outer(a)
	case c == 'n':
		return s.word("null")
	case c == '"':
		a.kind = text
	default:
		a.kind = other
	}
	return s.skip()
}

// outer reads a list of numbers or of lists of numbers.
func (s *scanner) outer(a *array) bool {
	from := s.i
	s.i++
	s.space()
	nested := s.buf[s.i] == '['
	s.i = from
	if !nested {
		return s.inner(a)
	}
	return s.list(func() bool {
		if s.buf[s.i] != '[' {
			a.shape = true
			return s.skip()
		}
		a.rows++
		return s.inner(a)
	})
}

// inner reads a list of numbers. The loop is where merging spends its time:
// up to seven digits are found and converted with eight-byte arithmetic and
// no branch on their count.
func (s *scanner) inner(a *array) bool {
	if !s.enter() {
		return false
	}
	s.space()
	if s.buf[s.i] == ']' {
		return s.leave()
	}
	buf, i, v := s.buf, s.i, a.v
	for {
		neg := buf[i] == '-'
		if neg {
			i++
		}
		t := binary.LittleEndian.Uint64(buf[i:]) ^ 0x3030303030303030
		stop := ((t + 0x7676767676767676) | t) & 0x8080808080808080
		n := bits.TrailingZeros64(stop) / 8
		if n == 8 || t&0xff == 0 && n > 1 { // eight or more, or a leading zero
			n = 0
		}
		c := buf[i+n]
		if n > 0 && (c == ',' || c == ']') {
			x := uint32(eightDigits(t << (64 - 8*n)))
			if neg {
				x = -x
			}
			v = append(v, x)
			i += n + 1
			if c == ']' {
				s.i, a.v = i, v
				s.depth--
				return true
			}
			if buf[i] == ' ' {
				i++
			}
			continue
		}
		if neg {
			i--
		}
		s.i, a.v = i, v
		done, ok := s.slowElement(a)
		if done || !ok {
			return ok
		}
		i, v = s.i, a.v
	}
}

// eightDigits converts eight digits, the first in the lowest byte.
func eightDigits(t uint64) uint64 {
	t = t*10 + t>>8
	return (t&0x000000ff000000ff*0x000f424000000064 + t>>16&0x000000ff000000ff*0x0000271000000001) >> 32
}

// slowElement reads one element and what separates it from the next.
func (s *scanner) slowElement(a *array) (done, ok bool) {
	s.space()
	if !s.element(a) {
		return false, false
	}
	s.space()
	switch s.buf[s.i] {
	case ',':
		s.i++
		s.space()
		return false, true
	case ']':
		return true, s.leave()
	}
	return false, s.unexpected("a comma or ]")
}

// element reads one element of any kind.
func (s *scanner) element(a *array) bool {
	from := s.i
	c := s.buf[from]
	if !s.skip() {
		return false
	}
	raw := s.buf[from:s.i]
	switch {
	case c == '[':
		a.shape = true
		return true
	case c == '-' || c-'0' <= 9:
		if x, ok := whole(raw); ok {
			a.v = append(a.v, uint32(x))
			return true
		}
		a.noteBad(raw)
	case c == 't' || c == 'f':
		a.bools = min(a.bools, len(a.v))
		a.v = append(a.v, uint32(b2i(c == 't')))
		return true
	default:
		a.noteBad(raw)
	}
	a.v = append(a.v, 0)
	return true
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// whole converts a JSON number that is a whole number of 32 bits, however it
// is written: 7, 7.0 and 0.7e1 are the same.
func whole(raw []byte) (int32, bool) {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
		return 0, false
	}
	return int32(f), true
}

// mask is a field of zeros and ones.
type mask struct {
	array
	m []byte // one byte an element: 0, 1, or 2 where it is neither
}

// firstBad returns the index of the first element that is neither 0 nor 1, or
// a large number.
func (m *mask) firstBad() int {
	if i := bytes.IndexByte(m.m, 2); i >= 0 {
		return min(i, m.bad)
	}
	return m.bad
}

// mask reads the value at s into m.
func (s *scanner) mask(m *mask) bool {
	from := s.i
	if s.buf[from] == '[' && s.plainMask(m) {
		return true
	}
	s.i, m.m = from, m.m[:0]
	if !s.array(&m.array) {
		return false
	}
	for _, x := range m.v {
		m.m = append(m.m, byte(min(x, 2)))
	}
	return true
}

// plainMask reads a list of nothing but 0 and 1, four or two elements at a
// time where they are written without spaces or as Python writes them. It
// returns false, to have the list read again the general way, at anything else.
func (s *scanner) plainMask(m *mask) bool {
	const (
		four, fourBits = 0x2c302c302c302c30, 0x0001000100010001 // 0,0,0,0,
		two, twoBits   = 0x202c30202c30, 0x000001000001         // 0, 0,_
		sixBytes       = 1<<48 - 1
	)
	m.array.reset()
	m.kind = numbers
	buf, i, v := s.buf, s.i+1, m.m[:0]
	for {
		x := binary.LittleEndian.Uint64(buf[i:])
		if x&^fourBits == four {
			x &= fourBits
			x |= x >> 8
			v = binary.LittleEndian.AppendUint32(v, uint32(x&0xffff|x>>16&0xffff0000))
			i += 8
			continue
		}
		if x&sixBytes&^twoBits == two {
			v = append(v, byte(x&1), byte(x>>24&1))
			i += 6
			continue
		}
		if x&0xfe != '0' {
			return false
		}
		v = append(v, byte(x&1))
		switch byte(x >> 8) {
		case ']':
			s.i, m.m = i+2, v
			return true
		case ',':
			i += 2
			if buf[i] == ' ' {
				i++
			}
		default:
			return false
		}
	}
}
