package blob

import (
	"fmt"
	"math/bits"
)

// The row selections that Meta.Rows names. An entry written with a selection
// serves only positions that use the entry's own mask: another mask may select
// other rows.
const (
	RowsAll            = "all"
	RowsLastSupervised = "last-supervised"          // last layer: supervised rows and their neighbours
	RowsCutTail        = "cut-tail"                 // all layers: up to one row after the last supervised one
	RowsBoth           = "last-supervised+cut-tail" // both
)

func parseSelection(s string) (supervised, tail bool, err error) {
	switch s {
	case "", RowsAll:
		return false, false, nil
	case RowsLastSupervised:
		return true, false, nil
	case RowsCutTail:
		return false, true, nil
	case RowsBoth:
		return true, true, nil
	}
	return false, false, fmt.Errorf("rows %q: want %s, %s, %s or %s", s, RowsAll, RowsLastSupervised, RowsCutTail, RowsBoth)
}

// SelectedRows returns how many rows of an entry with this mask are stored: of
// the last layer and of each other one.
func SelectedRows(rows string, mask []byte) (last, others int, err error) {
	supervised, tail, err := parseSelection(rows)
	if err != nil {
		return 0, 0, err
	}
	keep := selection(mask, supervised, tail)
	return keep.count(keep.last, len(mask)), keep.count(keep.others, len(mask)), nil
}

// selected holds the row maps of an entry; a nil map means all rows.
type selected struct{ last, others bitmap }

func (selected) count(b bitmap, rows int) int {
	if b == nil {
		return rows
	}
	return b.ones()
}

func (s selected) layer(l, layers int) bitmap {
	if l == layers-1 {
		return s.last
	}
	return s.others
}

// selection applies the rules to a mask of one byte a token. A row is kept with
// its neighbours because row t-1 predicts token t and trainers that run several
// steps ahead look one row further.
func selection(mask []byte, supervised, tail bool) selected {
	n := len(mask)
	end := n
	if tail {
		for t := n - 1; t >= 0; t-- {
			if mask[t] != 0 {
				end = min(n, t+2)
				break
			}
		}
	}
	var s selected
	if end < n {
		s.others = newBitmap(n)
		for t := range end {
			s.others.set(t)
		}
		s.last = s.others
	}
	if !supervised {
		return s
	}
	last := newBitmap(n)
	kept := 0
	for t := range end {
		if mask[t] != 0 || t > 0 && mask[t-1] != 0 || t+1 < n && mask[t+1] != 0 {
			last.set(t)
			kept++
		}
	}
	if s.last = last; kept == n {
		s.last = nil
	}
	return s
}

// bitmap is a bit field, least significant bit first.
type bitmap []byte

func bitmapBytes(n int) int { return (n + 7) / 8 }

func newBitmap(n int) bitmap { return make(bitmap, bitmapBytes(n)) }

func (b bitmap) set(i int)      { b[i>>3] |= 1 << (i & 7) }
func (b bitmap) has(i int) bool { return b[i>>3]>>(i&7)&1 != 0 }

func (b bitmap) ones() int {
	n := 0
	for _, v := range b {
		n += bits.OnesCount8(v)
	}
	return n
}

// onesIn counts the ones among bits [from, to).
func (b bitmap) onesIn(from, to int) int {
	n := 0
	for from < to && from&7 != 0 {
		n += int(b[from>>3] >> (from & 7) & 1)
		from++
	}
	for ; from+8 <= to; from += 8 {
		n += bits.OnesCount8(b[from>>3])
	}
	for ; from < to; from++ {
		n += int(b[from>>3] >> (from & 7) & 1)
	}
	return n
}

// clean reports whether the bits after the first n are zero.
func (b bitmap) clean(n int) bool { return n&7 == 0 || b[n>>3]>>(n&7) == 0 }
