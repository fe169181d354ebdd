package plan

import (
	"maps"
	"slices"
	"sort"

	"eaglebatch/store/samples"
)

// curve answers exact questions about a multiset of numbers, such as the
// lengths of a dataset's samples, for any cap. It holds each distinct value
// once, so its size is bounded by the longest sample and not by their number.
type curve struct {
	counts map[uint32]int64 // while it is filled

	values []uint32 // ascending
	count  []int64  // count[i]: numbers ≤ values[i]
	sum    []int64  // sum[i]: their sum
}

func (c *curve) add(v uint32) {
	if c.counts == nil {
		c.counts = map[uint32]int64{}
	}
	c.counts[v]++
}

func (c *curve) seal() {
	c.values = slices.Sorted(maps.Keys(c.counts))
	c.count, c.sum = make([]int64, len(c.values)), make([]int64, len(c.values))
	var n, s int64
	for i, v := range c.values {
		n += c.counts[v]
		s += c.counts[v] * int64(v)
		c.count[i], c.sum[i] = n, s
	}
	c.counts = nil
}

// upTo returns how many numbers are at most v, and their sum.
func (c *curve) upTo(v int64) (n, sum int64) {
	i := sort.Search(len(c.values), func(i int) bool { return int64(c.values[i]) > v })
	if i == 0 {
		return 0, 0
	}
	return c.count[i-1], c.sum[i-1]
}

// all returns how many numbers there are, and their sum.
func (c *curve) all() (n, sum int64) {
	if len(c.values) == 0 {
		return 0, 0
	}
	return c.count[len(c.count)-1], c.sum[len(c.sum)-1]
}

// capped returns the sum of min(v, cap) over all numbers v.
func (c *curve) capped(limit int64) int64 {
	n, sum := c.upTo(limit)
	all, _ := c.all()
	return sum + (all-n)*limit
}

// quantile returns the smallest number that at least the share q of the
// numbers do not exceed (nearest rank).
func (c *curve) quantile(q float64) int64 {
	n, _ := c.all()
	if n == 0 {
		return 0
	}
	rank := max(1, int64(float64(n)*q+0.999999999))
	i := sort.Search(len(c.count), func(i int) bool { return c.count[i] >= rank })
	return int64(c.values[min(i, len(c.values)-1)])
}

// windows counts the windows of limit that all numbers make.
func (c *curve) windows(limit int64) (n int64) {
	var before int64
	for i, v := range c.values {
		n += (c.count[i] - before) * ((int64(v) + limit - 1) / limit)
		before = c.count[i]
	}
	return n
}

func (c *curve) max() int64 {
	if len(c.values) == 0 {
		return 0
	}
	return int64(c.values[len(c.values)-1])
}

// lengths is what is known of a set of samples for any cap: an exact account of
// tokens, and of rows where a selection by the mask leaves some out as close
// as shape.bytes.
//
// A sample of length v whose first supervised token is f keeps min(v, cap)
// tokens where f < cap, and none where the cap empties it. Since f < v, an
// emptied one would have kept exactly cap: so each sum over kept samples is the
// sum over all less cap for each emptied one, and one-dimensional curves do.
type lengths struct {
	length curve
	first  curve // first supervised token; unsupervised samples are not in it
	last   curve // one past the last supervised token, of the same samples
	tail   curve // rows left by cut-tail
	sup    int64 // supervised tokens
}

func (l *lengths) add(r samples.Row) {
	l.length.add(r.Length)
	if r.Supervised == 0 {
		l.tail.add(r.Length)
		return
	}
	l.first.add(r.First)
	l.last.add(r.Last)
	l.tail.add(min(r.Length, r.Last+1))
	l.sup += int64(r.Supervised)
}

func (l *lengths) seal() {
	for _, c := range []*curve{&l.length, &l.first, &l.last, &l.tail} {
		c.seal()
	}
}

// outcome of a cap on a set of samples.
type capped struct {
	samples, tokens    int64 // kept
	truncated, emptied int64
	skipped            int64 // longer than the cap, where those are skipped
}

const noCap = int64(1) << 40

// at counts what a cap leaves; 0 is no cap.
func (l *lengths) at(limit int64, overlong string) capped {
	if limit == 0 {
		limit = noCap
	}
	all, tokens := l.length.all()
	fit, fitTokens := l.length.upTo(limit)
	switch overlong {
	case Skip:
		return capped{samples: fit, tokens: fitTokens, skipped: all - fit}
	case Split:
		e := l.emptyWindows(limit)
		return capped{samples: l.length.windows(limit) - e, tokens: tokens - e*limit, truncated: all - fit, emptied: e}
	}
	e := l.emptied(limit)
	return capped{samples: all - e, tokens: l.length.capped(limit) - e*limit, truncated: all - fit - e, emptied: e}
}

// emptyWindows counts the windows of samples that are split that end before the
// first supervised token. Windows after it without one are not seen.
func (l *lengths) emptyWindows(limit int64) (n int64) {
	var before int64
	for i, v := range l.first.values {
		n += (l.first.count[i] - before) * (int64(v) / limit)
		before = l.first.count[i]
	}
	return n
}

// emptied counts the samples whose first supervised token lies at or after the
// cap.
func (l *lengths) emptied(limit int64) int64 {
	all, _ := l.first.all()
	before, _ := l.first.upTo(limit - 1)
	return all - before
}

// rows estimates the rows stored of the last layer and of each other one.
func (l *lengths) rows(limit int64, overlong string, selection rowSelection) (last, others int64) {
	c := l.at(limit, overlong)
	if limit == 0 {
		limit = noCap
	}
	others = c.tokens
	if selection.tail && overlong == Truncate {
		others = l.tail.capped(limit) - c.emptied*limit
	}
	last = others
	if selection.supervised {
		if overlong == Split {
			limit = noCap // every supervised token is in some window
		}
		last = min(last, l.supervisedRows(limit))
	}
	return last, others
}

// supervisedRows estimates the supervised rows under a cap and their neighbours.
func (l *lengths) supervisedRows(limit int64) int64 {
	n, first := l.first.all()
	_, last := l.last.all()
	if last == first {
		return 0
	}
	span := l.last.capped(limit) - l.first.capped(limit)
	density := float64(l.sup) / float64(last-first)
	return int64(density*float64(span)) + 2*(n-l.emptied(limit))
}
