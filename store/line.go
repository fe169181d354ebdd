package store

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// op changes one key of the ledger.
type op struct {
	bucket, key string
	value       []byte
	del         bool
}

// step is one line of checkpoints.jsonl.
type step struct {
	seq   uint64
	at    time.Time
	label string
	base  bool // holds the whole table, not a change of it
	ops   []op
}

const (
	sumMark = `,"sum":"`
	sumLen  = len(sumMark) + 16 + len(`"}`)
)

// appendStep appends the line of s, newline included.
func appendStep(b []byte, s step) []byte {
	first := len(b)
	b = append(b, `{"seq":`...)
	b = strconv.AppendUint(b, s.seq, 10)
	b = append(b, `,"at":"`...)
	b = s.at.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","label":`...)
	b = appendString(b, s.label)
	if s.base {
		b = append(b, `,"base":true`...)
	}
	b = append(b, `,"ops":[`...)
	for i, o := range s.ops {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = appendString(b, o.bucket)
		b = append(b, ',')
		b = appendString(b, o.key)
		if !o.del {
			b = append(b, `,"`...)
			b = base64.StdEncoding.AppendEncode(b, o.value)
			b = append(b, '"')
		}
		b = append(b, ']')
	}
	b = append(b, ']')
	body := b[first:]
	b = append(b, sumMark...)
	b = appendSum(b, body)
	return append(b, "\"}\n"...)
}

func appendSum(b, body []byte) []byte {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], xxhash.Sum64(body))
	return hex.AppendEncode(b, sum[:])
}

// appendString appends s as a JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			j, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always marshals
			}
			return append(b, j...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// errSum marks a line that is not, in full, what some writer wrote.
var errSum = errors.New("not a whole line")

// parseStep decodes a line, given without its newline. Only what appendStep
// writes is accepted: the checksum proves the writer, so a deviation is a
// defect and not a dialect. encoding/json would take 100 ms for the log of a
// night, which is all the time that stat has.
func parseStep(line []byte) (step, error) {
	var s step
	if len(line) < sumLen {
		return s, fmt.Errorf("%w: %d bytes", errSum, len(line))
	}
	body, tail := line[:len(line)-sumLen], line[len(line)-sumLen:]
	if !bytes.HasPrefix(tail, []byte(sumMark)) || !bytes.HasSuffix(tail, []byte(`"}`)) {
		return s, fmt.Errorf("%w: no checksum at its end", errSum)
	}
	sum := tail[len(sumMark) : len(sumMark)+16]
	if want := appendSum(nil, body); !bytes.Equal(sum, want) {
		return s, fmt.Errorf("%w: checksum is %s, should be %s", errSum, sum, want)
	}
	p := parser{b: body}
	p.lit(`{"seq":`)
	s.seq = p.uint()
	p.lit(`,"at":`)
	at := p.str()
	p.lit(`,"label":`)
	s.label = p.str()
	s.base = p.opt(`,"base":true`)
	p.lit(`,"ops":[`)
	for p.err == nil && !p.opt(`]`) {
		if len(s.ops) > 0 {
			p.lit(`,`)
		}
		s.ops = append(s.ops, p.op())
	}
	if p.err == nil && p.i != len(body) {
		p.fail("more after the ops")
	}
	if p.err == nil {
		s.at, p.err = time.Parse(time.RFC3339Nano, at)
	}
	return s, p.err
}

// parser reads the body of a line; the first error sticks.
type parser struct {
	b   []byte
	i   int
	err error
}

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = fmt.Errorf("%s at byte %d of the line", what, p.i)
	}
}

func (p *parser) opt(s string) bool {
	if p.err != nil || !bytes.HasPrefix(p.b[p.i:], []byte(s)) {
		return false
	}
	p.i += len(s)
	return true
}

func (p *parser) lit(s string) {
	if p.err == nil && !p.opt(s) {
		p.fail(fmt.Sprintf("no %q", s))
	}
}

func (p *parser) uint() uint64 {
	if p.err != nil {
		return 0
	}
	j := p.i
	for j < len(p.b) && p.b[j] >= '0' && p.b[j] <= '9' {
		j++
	}
	n, err := strconv.ParseUint(string(p.b[p.i:j]), 10, 64)
	if err != nil {
		p.fail("no number")
		return 0
	}
	p.i = j
	return n
}

// raw returns the bytes of a JSON string between its quotes and whether it
// holds escapes.
func (p *parser) raw() (s []byte, escaped bool) {
	p.lit(`"`)
	if p.err != nil {
		return nil, false
	}
	for j := p.i; ; j++ {
		n := bytes.IndexByte(p.b[j:], '"')
		if n < 0 {
			p.fail("string without an end")
			return nil, false
		}
		slashes := 0
		for ; slashes < n && p.b[j+n-1-slashes] == '\\'; slashes++ {
		}
		j += n
		if slashes%2 == 0 {
			s = p.b[p.i:j]
			p.i = j + 1
			return s, bytes.IndexByte(s, '\\') >= 0
		}
	}
}

func (p *parser) str() string {
	from := p.i
	s, escaped := p.raw()
	if p.err == nil && !utf8.Valid(s) {
		p.i = from
		p.fail("string that is no UTF-8")
	}
	if p.err != nil || !escaped {
		return string(s)
	}
	var v string
	if err := json.Unmarshal(p.b[from:p.i], &v); err != nil {
		p.i = from
		p.fail("bad string")
	}
	return v
}

func (p *parser) op() op {
	var o op
	p.lit(`[`)
	o.bucket = p.str()
	p.lit(`,`)
	o.key = p.str()
	if p.opt(`]`) {
		o.del = true
		return o
	}
	p.lit(`,`)
	s, _ := p.raw()
	p.lit(`]`)
	if p.err != nil {
		return o
	}
	o.value = make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Strict().Decode(o.value, s)
	if err != nil {
		p.fail("bad base64")
	}
	o.value = o.value[:n]
	return o
}
