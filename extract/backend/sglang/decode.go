package sglang

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

var (
	errNotFinite = errors.New("a value that is not finite")
	errNotBF16   = errors.New("a value that is no bf16 number: start the server with --dtype bfloat16")
)

// widthError says that rows have another width than the model's.
type widthError struct{ token, values, hidden int }

func (e *widthError) Error() string {
	return fmt.Sprintf("token %d: states of %d values, the model has hidden size %d (does the server load a draft model?)", e.token, e.values, e.hidden)
}

// rowsError says that there are more or fewer rows than tokens.
type rowsError struct{ rows, tokens int }

func (e *rowsError) Error() string {
	return fmt.Sprintf("%d rows of states for %d tokens: start the server with --chunked-prefill-size -1", e.rows, e.tokens)
}

// decode turns the states of a prompt, valid JSON of the form [[number, …], …],
// into rows of bf16. Numbers are printed so that they come back exactly; null
// stands for one that is not finite. Of answers in another shape it still tells
// the shape, and keeps nothing beyond tokens*hidden values.
func decode(text []byte, tokens, hidden int) ([]byte, error) {
	s := scanner{text: text}
	out := make([]byte, 0, tokens*hidden*2)
	if !s.open() {
		return nil, errors.New("hidden_states is no array")
	}
	rows := 0
	for ; !s.close(); rows++ {
		if !s.open() {
			return nil, errors.New("hidden_states begins with a single row, that of a generated token, and not with those of the prompt")
		}
		width := 0
		for ; !s.close(); width++ {
			v, err := s.value()
			if err != nil {
				return nil, fmt.Errorf("token %d: %w", rows, err)
			}
			if rows < tokens && width < hidden {
				out = binary.LittleEndian.AppendUint16(out, v)
			}
		}
		if width != hidden {
			return nil, &widthError{rows, width, hidden}
		}
	}
	if rows != tokens {
		return nil, &rowsError{rows, tokens}
	}
	return out, nil
}

// scanner walks through an array of arrays of numbers. A comma counts as space:
// that the text is JSON is known.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) skip() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', ',', '\n', '\r', '\t':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) take(c byte) bool {
	s.skip()
	if s.at < len(s.text) && s.text[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) open() bool { return s.take('[') }

// close reports whether the array ends here; the text's end ends all of them.
func (s *scanner) close() bool { return s.take(']') || s.at == len(s.text) }

// value reads one number as bf16.
func (s *scanner) value() (uint16, error) {
	from := s.at
	for s.at < len(s.text) {
		if c := s.text[s.at]; c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != 'E' {
			break
		}
		s.at++
	}
	token := s.text[from:s.at]
	if string(token) == "null" {
		return 0, errNotFinite
	}
	v, err := strconv.ParseFloat(string(token), 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, errNotFinite
	case err != nil:
		return 0, fmt.Errorf("%.40q, where a number belongs", s.text[from:])
	}
	bits := math.Float32bits(float32(v)) // also of the shortest text that means this float32
	if bits>>23&0xff == 0xff {
		return 0, errNotFinite
	}
	if bits&0xffff != 0 {
		return 0, errNotBF16
	}
	return uint16(bits >> 16), nil
}
