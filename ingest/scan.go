package ingest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
)

// pad is how many readable bytes must lie behind a line, so that eight bytes
// can be loaded anywhere in it. Their values do not matter: the byte right
// behind the line is no digit and no JSON whitespace but a line feed or zero.
const pad = 8

// maxDepth is the deepest nesting that encoding/json reads.
const maxDepth = 10000

// scanner reads one line of JSON: it accepts exactly what encoding/json does,
// in one pass that writes number arrays straight into their buffers.
type scanner struct {
	buf   []byte // the line begins at start, ends before end, pad bytes follow
	start int
	end   int
	i     int
	depth int
	err   string // the first thing wrong, "" while all is well
	at    int
}

func (s *scanner) reset(buf []byte, start, end int) {
	*s = scanner{buf: buf, start: start, end: end, i: start}
}

// fail records what is wrong here, once, and returns false.
func (s *scanner) fail(what string) bool {
	if s.err == "" {
		s.err, s.at = what, s.i
	}
	return false
}

func (s *scanner) unexpected(want string) bool {
	if s.i >= s.end {
		return s.fail("the line ends where " + want + " should be")
	}
	return s.fail(fmt.Sprintf("%q where %s should be", s.buf[s.i], want))
}

func (s *scanner) space() {
	for {
		switch s.buf[s.i] {
		case ' ', '\t', '\r':
			s.i++
		default:
			return
		}
	}
}

// object calls field with each key at its value; field must consume it.
func (s *scanner) object(field func(key []byte) bool) bool {
	if s.buf[s.i] != '{' || s.i >= s.end {
		return s.unexpected("{")
	}
	if !s.enter() {
		return false
	}
	s.space()
	if s.buf[s.i] == '}' {
		return s.leave()
	}
	for {
		key, ok := s.str()
		if !ok {
			return false
		}
		s.space()
		if s.buf[s.i] != ':' {
			return s.unexpected("a colon")
		}
		s.i++
		s.space()
		if !field(key) {
			return false
		}
		s.space()
		switch s.buf[s.i] {
		case ',':
			s.i++
			s.space()
		case '}':
			return s.leave()
		default:
			return s.unexpected("a comma or }")
		}
	}
}

// list calls element at each element; element must consume it.
func (s *scanner) list(element func() bool) bool {
	if !s.enter() {
		return false
	}
	s.space()
	if s.buf[s.i] == ']' {
		return s.leave()
	}
	for {
		if !element() {
			return false
		}
		s.space()
		switch s.buf[s.i] {
		case ',':
			s.i++
			s.space()
		case ']':
			return s.leave()
		default:
			return s.unexpected("a comma or ]")
		}
	}
}

func (s *scanner) enter() bool {
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deeply")
	}
	s.i++
	return true
}

func (s *scanner) leave() bool {
	s.depth--
	s.i++
	return true
}

// skip steps over any value.
func (s *scanner) skip() bool {
	switch c := s.buf[s.i]; {
	case c == '{':
		return s.object(func([]byte) bool { return s.skip() })
	case c == '[':
		return s.list(s.skip)
	case c == '"':
		_, ok := s.raw()
		return ok
	case c == '-' || c-'0' <= 9:
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.unexpected("a value")
}

func (s *scanner) word(w string) bool {
	if s.end-s.i < len(w) || string(s.buf[s.i:s.i+len(w)]) != w {
		return s.unexpected("a value")
	}
	s.i += len(w)
	return true
}

// number steps over a number as JSON's grammar has it.
func (s *scanner) number() bool {
	if s.buf[s.i] == '-' {
		s.i++
	}
	switch {
	case s.buf[s.i] == '0':
		s.i++
	case !s.digits():
		return false
	}
	if s.buf[s.i] == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if s.buf[s.i]|0x20 == 'e' {
		s.i++
		if c := s.buf[s.i]; c == '+' || c == '-' {
			s.i++
		}
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	from := s.i
	for s.buf[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > from || s.unexpected("a digit")
}

// str reads a string and returns its value, which may lie in the line.
func (s *scanner) str() ([]byte, bool) {
	raw, ok := s.raw()
	if !ok {
		return nil, false
	}
	v := raw[1 : len(raw)-1]
	for _, c := range v {
		if c == '\\' || c >= 0x80 {
			return unescape(raw), true
		}
	}
	return v, true
}

// unescape is the slow way for strings with escapes and for those that may
// hold invalid UTF-8, which encoding/json replaces.
func unescape(raw []byte) []byte {
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		return raw[1 : len(raw)-1] // not reached: raw was checked
	}
	return []byte(v)
}

// raw steps over a string and returns it with its quotes.
func (s *scanner) raw() ([]byte, bool) {
	if s.buf[s.i] != '"' || s.i >= s.end {
		return nil, s.unexpected("a string")
	}
	from := s.i
	s.i++
	for {
		s.plain()
		switch c := s.buf[s.i]; {
		case s.i >= s.end:
			return nil, s.unexpected("the end of the string")
		case c == '"':
			s.i++
			return s.buf[from:s.i], true
		case c == '\\':
			if !s.escape() {
				return nil, false
			}
		default:
			return nil, s.fail(fmt.Sprintf("control character %#02x in a string", c))
		}
	}
}

// plain steps over what needs no look inside a string: eight bytes at a time
// while none of them is a quote, a backslash or a control character.
func (s *scanner) plain() {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	for s.i < s.end {
		x := binary.LittleEndian.Uint64(s.buf[s.i:])
		quote, slash := x^'"'*ones, x^'\\'*ones
		// The lowest flag of each term is exact, false ones lie only above it.
		if hit := ((x-0x20*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & high; hit != 0 {
			s.i = min(s.i+bits.TrailingZeros64(hit)/8, s.end)
			return
		}
		s.i += 8
	}
	s.i = s.end
}

func (s *scanner) escape() bool {
	s.i++
	switch s.buf[s.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		if s.i >= s.end {
			return s.unexpected("an escape")
		}
		s.i++
		return true
	case 'u':
		for range 4 {
			s.i++
			if c := s.buf[s.i]; s.i >= s.end || !(c-'0' <= 9 || c|0x20-'a' <= 5) {
				return s.unexpected("a hexadecimal digit")
			}
		}
		s.i++
		return true
	}
	return s.unexpected("an escape")
}
