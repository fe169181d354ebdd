package extract

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/store/blob"
)

// emit takes one chunk from the engine.
func (x *session) emit(c backend.Chunk) error {
	x.emitMu.Lock()
	defer x.emitMu.Unlock()
	if x.ended {
		return &errProtocol{errors.New("a chunk after the session's end")}
	}
	r, s := x.r, x.s
	r.mu.Lock()
	rq := s.inflight[c.ID]
	x.inEmit = true
	s.slowest = max(s.slowest, time.Since(s.heard))
	r.mu.Unlock()
	err := x.chunk(rq, c)
	r.mu.Lock()
	x.inEmit, s.heard = false, time.Now()
	r.mu.Unlock()
	return err
}

func (x *session) chunk(rq *request, c backend.Chunk) error {
	r := x.r
	if rq == nil {
		return &errProtocol{fmt.Errorf("an answer to request %d, which is not in flight", c.ID)}
	}
	if c.Err != nil {
		return x.failed(rq, c.Err)
	}
	tb, rows := r.cost.tokenBytes, len(rq.ids)
	last := c.First+c.Rows == rows
	switch {
	case c.Rows <= 0 || c.First != rq.got || c.First+c.Rows > rows:
		return &errProtocol{fmt.Errorf("rows [%d, %d) of a sample of %d, of which %d had come", c.First, c.First+c.Rows, rows, rq.got)}
	case len(c.Data) != c.Rows*tb && !last:
		return &errProtocol{fmt.Errorf("%d bytes for %d rows of %d", len(c.Data), c.Rows, tb)}
	case len(c.Data) != c.Rows*tb:
		return x.failed(rq, fmt.Errorf("%d bytes for the last %d rows of %d", len(c.Data), c.Rows, tb))
	}
	if rq.bad == nil {
		rq.bad = x.check(rq, c)
	}
	if rq.bad == nil {
		if err := x.keep(rq, c); err != nil {
			return err
		}
	}
	rq.got += c.Rows
	if !last {
		return nil
	}
	if rq.bad != nil {
		return x.failed(rq, rq.bad)
	}
	return x.complete(rq)
}

// check looks at a chunk's content.
func (x *session) check(rq *request, c backend.Chunk) error {
	if c.Echo != nil && !slices.Equal(c.Echo, rq.ids) {
		return errors.New("the engine used other token ids than it was given")
	}
	return x.r.vals.checkRows(c.Data, c.First, x.r.meta.GivenRowBytes(), x.r.meta.Layers)
}

// keep stores a chunk's rows: in slabs, or in the blob where the sample is too
// large for them.
func (x *session) keep(rq *request, c backend.Chunk) error {
	if rq.job == nil {
		rq.canary = append(rq.canary, c.Data...)
		return nil
	}
	x.r.sense.gather(rq, c)
	if rq.stream {
		if err := rq.job.stream(x.runCtx, rq, c.Data, c.Rows); err != nil {
			return x.ours(err)
		}
		return nil
	}
	s, tb := x.s, x.r.cost.tokenBytes
	at, data := c.First, c.Data
	for len(data) > 0 {
		slab, in := at/s.credit.slabRows, at%s.credit.slabRows
		if slab == len(rq.slabs) {
			x.r.mu.Lock()
			rq.slabs = append(rq.slabs, s.credit.slab())
			x.r.mu.Unlock()
		}
		n := copy(rq.slabs[slab][in*tb:], data)
		data, at = data[n:], at+n/tb
	}
	return nil
}

// complete takes a sample of which all rows came and are good.
func (x *session) complete(rq *request) error {
	r, s := x.r, x.s
	if rq.job == nil {
		return x.canaryCame(rq)
	}
	r.mu.Lock()
	s.unbook(rq)
	s.answers++
	s.tokens += int64(len(rq.ids))
	clear(s.streak)
	s.wary, s.ailing = false, nil
	s.well(rq)
	r.mu.Unlock()
	r.progress.Store(time.Now().UnixNano())
	if err := r.sense.submit(x.runCtx, rq); err != nil {
		return x.ours(err)
	}
	if rq.stream {
		return nil // its rows are in the blob already
	}
	return x.ours(rq.job.put(x.runCtx, rq))
}

// doubt looks at the samples of a job whose states made no sense. It reports
// whether the blob is to be made again: with each tried once more, or left out.
func (r *run) doubt(j *job) bool {
	doubted := r.sense.doubt(j)
	if len(doubted) == 0 {
		return false
	}
	const reason = "the states do not speak for the sample's tokens, as those of the others do: they may be another sample's"
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range doubted {
		key := entryKey{j.no, i}
		t := r.troubleOf(key)
		if t.fails++; t.fails >= 2 {
			t.verdict = reason
		}
		r.rep.Note("%s: %s; blob %d is made again", r.entryName(key), reason, j.no)
	}
	return true
}

// entryName names a sample for people.
func (r *run) entryName(k entryKey) string {
	e := r.idx.Entry(k.blob, k.entry)
	index, window := blob.SplitSample(e.Sample)
	name := fmt.Sprintf("%s sample %d", r.meta.Datasets[e.Dataset], index)
	if r.src.window > 0 {
		name += fmt.Sprintf(" window %d", window)
	}
	return name
}

// nameOf names a request's sample for the engine's log.
func (r *run) nameOf(rq *request) string {
	if rq.job == nil {
		return "the canary"
	}
	return r.entryName(rq.key())
}
