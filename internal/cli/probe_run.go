package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

// probeRun is one list on all slots. Samples are written in the order in which
// they are complete; a sample larger than the credit goes through alone.
type probeRun struct {
	ctx      context.Context
	w        *blob.Writer
	todo     []*samples.Sample
	rowBytes int64

	mu     sync.Mutex
	free   *sync.Cond
	rows   map[uint64][]byte // of samples under way
	got    []int             // rows received, by request
	ended  []bool            // by request: complete or failed
	left   int               // requests that have not ended
	credit int64
	whole  int64 // credit when nothing is in flight
	failed int
	why    error // of the first sample that failed
	tokens int64
	came   []arrival // of the samples that did not fail
	err    error
}

func newProbeRun(ctx context.Context, w *blob.Writer, todo []*samples.Sample, m blob.Meta, memory int64) *probeRun {
	r := &probeRun{
		ctx: ctx, w: w, todo: todo, rowBytes: int64(len(m.Layers) * m.GivenRowBytes()), rows: map[uint64][]byte{},
		got: make([]int, len(todo)), ended: make([]bool, len(todo)), left: len(todo), credit: memory, whole: memory,
	}
	r.free = sync.NewCond(&r.mu)
	return r
}

func (r *probeRun) serve(ctx context.Context, b backend.Backend, slots int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan backend.Request)
	var wg sync.WaitGroup
	for slot := range slots {
		wg.Go(func() {
			if err := b.Serve(ctx, slot, in, r.emit); err != nil {
				r.fail(err)
				cancel()
			}
		})
	}
	r.send(ctx, in)
	close(in)
	wg.Wait()
	if r.err == nil && r.left > 0 {
		return fmt.Errorf("%w: %d of %d samples were never answered", backend.ErrUnavailable, r.left, len(r.todo))
	}
	return r.err
}

func (r *probeRun) send(ctx context.Context, in chan<- backend.Request) {
	stop := context.AfterFunc(ctx, func() {
		// Under the lock: else it could fall between the look at ctx and Wait.
		r.mu.Lock()
		defer r.mu.Unlock()
		r.free.Broadcast()
	})
	defer stop()
	for i, s := range r.todo {
		need := r.need(s)
		r.mu.Lock()
		for r.credit < need && ctx.Err() == nil {
			r.free.Wait()
		}
		r.credit -= need
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			r.fail(ctx.Err())
			return
		case in <- backend.Request{ID: uint64(i), Tokens: s.IDs, Name: s.ID}:
		}
	}
}

func (r *probeRun) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

func (r *probeRun) emit(c backend.Chunk) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.ID >= uint64(len(r.todo)) || r.ended[c.ID] {
		return fmt.Errorf("%w: an answer to request %d, which is not open", backend.ErrUnavailable, c.ID)
	}
	s := r.todo[c.ID]
	alone := int64(len(s.IDs))*r.rowBytes > r.whole
	if c.Err != nil {
		if alone && r.got[c.ID] > 0 {
			// Part of it is in the blob, which holds whole samples only.
			return fmt.Errorf("a sample of %d tokens failed after %d rows: %w", len(s.IDs), r.got[c.ID], c.Err)
		}
		if r.failed++; r.why == nil {
			r.why = c.Err
		}
		r.done(c.ID)
		return nil
	}
	if err := r.fits(c); err != nil {
		return err
	}
	r.got[c.ID] += c.Rows
	if alone {
		return r.stream(s, c)
	}
	r.rows[c.ID] = append(r.rows[c.ID], c.Data...)
	if r.got[c.ID] < len(s.IDs) {
		return nil
	}
	defer r.done(c.ID)
	if err := r.begin(s); err != nil {
		return err
	}
	return r.end(s, r.rows[c.ID], len(s.IDs))
}

// fits checks that a chunk holds the next rows of its request.
func (r *probeRun) fits(c backend.Chunk) error {
	got, want := r.got[c.ID], len(r.todo[c.ID].IDs)
	if c.Rows < 1 || c.First != got || c.Rows > want-got || int64(len(c.Data)) != int64(c.Rows)*r.rowBytes {
		return fmt.Errorf("%w: request %d: %d bytes for %d rows from %d, after %d of %d rows of %d bytes",
			backend.ErrUnavailable, c.ID, len(c.Data), c.Rows, c.First, got, want, r.rowBytes)
	}
	return nil
}

// stream writes the rows of a sample that goes through alone as they come.
func (r *probeRun) stream(s *samples.Sample, c backend.Chunk) error {
	if c.First == 0 {
		if err := r.begin(s); err != nil {
			return err
		}
	}
	if r.got[c.ID] < len(s.IDs) {
		return r.w.Rows(r.ctx, c.Data, c.Rows)
	}
	defer r.done(c.ID)
	return r.end(s, c.Data, c.Rows)
}

func (r *probeRun) begin(s *samples.Sample) error {
	row := samples.MakeRow(s)
	return r.w.Begin(blob.Entry{Sample: s.Index, Rows: uint32(len(s.IDs)), Tokens: row.Tokens, Content: row.Content}, s.IDs, s.Mask)
}

func (r *probeRun) end(s *samples.Sample, rows []byte, n int) error {
	r.tokens += int64(len(s.IDs))
	r.came = append(r.came, arrival{time.Now(), int64(len(s.IDs))})
	return errors.Join(r.w.Rows(r.ctx, rows, n), r.w.End())
}

// need is the credit a sample takes.
func (r *probeRun) need(s *samples.Sample) int64 { return min(r.whole, int64(len(s.IDs))*r.rowBytes) }

func (r *probeRun) done(id uint64) {
	delete(r.rows, id)
	r.ended[id] = true
	r.left--
	r.credit += r.need(r.todo[id])
	r.free.Broadcast()
}

// arrival is a sample that is complete.
type arrival struct {
	at     time.Time
	tokens int64
}

// steady returns the seconds that a list would have taken in the middle of a
// long run: there the engine has the next samples at hand while it works, and
// fills its batches, which at the start of a list it cannot. So the first batch
// to arrive counts as warm-up, and the rest is measured from then on. Where
// nearly all comes in one batch, the whole time is all there is.
func steady(began time.Time, came []arrival) float64 {
	if len(came) == 0 {
		return 0
	}
	last := came[len(came)-1].at
	whole := last.Sub(began)
	warm := came[0].at.Add(whole / 50)
	var all, rest int64
	from := came[0].at
	for _, a := range came {
		all += a.tokens
		if a.at.After(warm) {
			rest += a.tokens
		} else {
			from = a.at
		}
	}
	if 4*rest < all {
		return whole.Seconds()
	}
	return last.Sub(from).Seconds() * float64(all) / float64(rest)
}
