package plan

import (
	"context"
	"fmt"

	"eaglebatch/store/samples"
)

// outcome is what became of a position.
type outcome uint8

const (
	planned outcome = iota
	dropped
	overLength
	emptied
)

// piece is what a plan keeps of a position: the first rows rows of the sample,
// or of one window of it. A window of a sample that is split is a sample of
// its own: its tokens are seen without what precedes them.
type piece struct {
	set    int
	merged uint32
	window uint32      // 0 where the sample is not split
	split  bool        // row is the window's
	row    samples.Row // before the cap
	rows   uint32
}

// tally counts positions by what became of them, and their tokens. The first
// four add up to positions.
type tally struct {
	positions, planned, dropped, overLength, emptied int64

	before    int64 // tokens before the cap, of what was not dropped
	tokens    int64 // tokens at planned positions
	truncated int64 // planned positions that the cap cut
	lost      int64 // tokens cut or skipped by the cap
}

func (t *tally) check() error {
	if sum := t.planned + t.dropped + t.overLength + t.emptied; sum != t.positions {
		return fmt.Errorf("accounting: %d positions, but planned %d + dropped %d + over-length %d + emptied %d = %d",
			t.positions, t.planned, t.dropped, t.overLength, t.emptied, sum)
	}
	if t.tokens+t.lost != t.before {
		return fmt.Errorf("accounting: %d tokens, but planned %d + lost %d", t.before, t.tokens, t.lost)
	}
	return nil
}

// selector applies drops, budget and cap to positions. It is used anew for
// each pass, since a dataset's budget is spent in order.
type selector struct {
	c      *corpus
	o      Options
	drop   []bool
	spent  []int64
	full   []bool
	splits *windows
	tally
}

func newSelector(c *corpus, o Options, w *windows) (*selector, error) {
	s := &selector{c: c, o: o, splits: w,
		drop: make([]bool, len(c.sets)), spent: make([]int64, len(c.sets)), full: make([]bool, len(c.sets))}
	for _, name := range o.Drop {
		found := false
		for i, d := range c.sets {
			if d.Name == name {
				s.drop[i], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("drop %q: no such dataset (%s)", name, suggestion(name, c.names()))
		}
	}
	return s, nil
}

// pass applies the selection to every position and hands on the pieces kept.
func (s *selector) pass(ctx context.Context, keep func(p place, q piece) error, other func(p place, o outcome)) error {
	var fail error
	for p := range s.c.places(ctx, &fail) {
		if s.o.Limit > 0 && s.planned >= s.o.Limit {
			break
		}
		if s.o.Overlong == Split && s.o.MaxTokens > 0 && int64(p.row.Length) > s.o.MaxTokens && !s.drop[p.set] {
			if err := s.split(ctx, p, keep, other); err != nil {
				return err
			}
			continue
		}
		rows, out := s.judge(p)
		s.count(out)
		if out != planned {
			if other != nil {
				other(p, out)
			}
			continue
		}
		q := piece{set: p.set, merged: p.merged, row: p.row, rows: rows}
		if err := keep(p, q); err != nil {
			return err
		}
	}
	if fail != nil {
		return fail
	}
	return s.check()
}

func (s *selector) count(o outcome) {
	s.positions++
	switch o {
	case planned:
		s.planned++
	case dropped:
		s.dropped++
	case overLength:
		s.overLength++
	case emptied:
		s.emptied++
	}
}

// judge decides on a position that is not split.
func (s *selector) judge(p place) (rows uint32, out outcome) {
	length := p.row.Length
	if s.drop[p.set] || s.full[p.set] && !p.eval {
		return 0, dropped
	}
	rows = keptRows(p.row, s.o.MaxTokens)
	long := s.o.MaxTokens > 0 && int64(length) > s.o.MaxTokens
	switch {
	case long && s.o.Overlong == Skip:
		s.before += int64(length)
		s.lost += int64(length)
		return 0, overLength
	case rows == 0:
		s.before += int64(length)
		s.lost += int64(length)
		return 0, emptied
	case !s.afford(p, rows):
		return 0, dropped
	}
	s.before += int64(length)
	s.tokens += int64(rows)
	if long {
		s.truncated++
		s.lost += int64(length - rows)
	}
	return rows, planned
}

// keptRows returns the rows kept of a sample that is cut where it is longer than
// the cap (0: none): no rows where the cap leaves no supervised token.
func keptRows(r samples.Row, maxTokens int64) uint32 {
	if maxTokens == 0 || int64(r.Length) <= maxTokens {
		return r.Length
	}
	if r.Supervised > 0 && int64(r.First) >= maxTokens {
		return 0
	}
	return uint32(maxTokens)
}

// afford spends the dataset's budget. The first training sample that does not
// fit ends the dataset: going on with shorter ones would bend the mix.
func (s *selector) afford(p place, rows uint32) bool {
	if s.o.MaxDatasetTokens == 0 || p.eval {
		return true
	}
	if s.spent[p.set]+int64(rows) > s.o.MaxDatasetTokens {
		s.full[p.set] = true
		return false
	}
	s.spent[p.set] += int64(rows)
	return true
}

// split makes a position of each window of a sample.
func (s *selector) split(ctx context.Context, p place, keep func(place, piece) error, other func(place, outcome)) error {
	ws, err := s.splits.of(ctx, p)
	if err != nil {
		return err
	}
	for i, w := range ws {
		rows, out := w.Length, planned
		switch {
		case s.full[p.set] && !p.eval:
			out = dropped
		case w.Supervised == 0 && p.row.Supervised > 0:
			out = emptied
		case !s.afford(p, rows):
			out = dropped
		}
		s.count(out)
		switch out {
		case dropped:
		case emptied:
			s.before += int64(w.Length)
			s.lost += int64(w.Length)
		default:
			s.before += int64(w.Length)
			s.tokens += int64(rows)
		}
		if out != planned {
			if other != nil {
				other(p, out)
			}
			continue
		}
		q := piece{set: p.set, merged: p.merged, window: uint32(i), split: true, row: w, rows: rows}
		if err := keep(p, q); err != nil {
			return err
		}
	}
	return nil
}
