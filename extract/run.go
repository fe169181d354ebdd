package extract

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// run is everything that one call of Run knows.
type run struct {
	o      Options
	ws     *store.Workspace
	fs     *fsx.FS
	rep    progress.Reporter
	info   backend.Info
	plan   store.PlanRow
	gen    store.GenerationRow
	dir    string // of the generation
	idx    *genindex.File
	meta   blob.Meta // of own blobs, Blob apart
	vals   values
	src    *source
	sense  *sense
	canary *canary
	keep   int64 // bytes of the volume that stay free
	room   *room
	cost   costs

	cancel   context.CancelCauseFunc // ends everything at once
	commits  sync.WaitGroup
	progress atomic.Int64 // unix ns of the last sample that came

	mu      sync.Mutex
	cond    *sync.Cond // something below changed
	err     error      // the first one that ends the run
	halt    bool       // hand out no further blob
	todo    []int      // blobs that nobody makes, ascending
	handed  int64      // positions of committed blobs and of those handed out
	open    map[int][]*job
	claimed map[int]bool
	sealed  map[int]bool // committed
	slots   []*slot
	trouble map[entryKey]*trouble
	known   map[knownKey]bool // samples that an older generation had to leave out; read only
	nextID  uint64
	clock   engineClock
}

// costs are the numbers of a blob that scheduling needs.
type costs struct {
	tokenBytes int     // of a token's rows as the engine gives them
	kept       int     // and as they are stored, before they are encoded
	positions  []int64 // of each blob
	served     []int64 // tokens at these
	reused     int64   // positions that older generations serve
	reusedToks int64   // tokens at these
	entries    int64   // distinct samples to compute
	expected   float64 // bytes on disk a byte of rows kept, as the plan foretells them
	encoded    int64   // bytes of committed blobs
	rows       int64   // and of the rows in them, as they are kept
}

// fail ends the run with err, the first one given.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
}

func (r *run) failLocked(err error) {
	if r.err == nil {
		r.err = err
	}
	r.cancel(err)
	r.cond.Broadcast()
}

// wake lets everybody look again.
func (r *run) wake() {
	r.mu.Lock()
	r.cond.Broadcast()
	r.mu.Unlock()
}

// stop hands out no further blob, and gives back those of which nothing has come
// yet.
func (r *run) stop() {
	r.mu.Lock()
	r.halt = true
	var jobs []*job
	for _, s := range r.slots {
		jobs = append(jobs, s.jobs...)
	}
	r.cond.Broadcast()
	r.mu.Unlock()
	for _, j := range jobs {
		if !j.idle() {
			continue
		}
		if err := j.drop(); err != nil {
			r.fail(err)
		}
	}
}

// extractAll runs all slots until every blob is sealed, or no more may be.
func (r *run) extractAll(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.cancel = cancel
	defer context.AfterFunc(ctx, r.wake)()
	r.progress.Store(time.Now().UnixNano())

	var wg, aside sync.WaitGroup
	asideCtx, asideStop := context.WithCancel(ctx)
	aside.Go(func() { r.watchStops(asideCtx) })
	aside.Go(func() { r.gauges(asideCtx) })
	r.sense.start(ctx, &aside, r.fail)
	for _, s := range r.slots {
		wg.Go(func() { s.loop(ctx) })
	}
	wg.Wait()
	r.commits.Wait()
	asideStop()
	r.sense.stop()
	aside.Wait()
	err := r.dropAll()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.slots {
		if s.ailing != nil && r.err == nil {
			r.rep.Note("%s was of no use at the end: %v", s, s.ailing)
		}
	}
	if r.err == nil {
		r.err = err
	}
	if r.err == nil && !errors.Is(context.Cause(ctx), errGrace) {
		r.err = ctx.Err()
	}
	return r.err
}

var errGrace = errors.New("open blobs dropped after the grace period")

// watchStops obeys Interrupt and Until.
func (r *run) watchStops(ctx context.Context) {
	var until <-chan time.Time
	if !r.o.Until.IsZero() {
		t := time.NewTimer(time.Until(r.o.Until))
		defer t.Stop()
		until = t.C
	}
	interrupt := r.o.Interrupt
	var grace <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-until:
			until = nil
			r.rep.Note("the time is up: finishing the open blobs")
			r.stop()
		case <-interrupt:
			interrupt = nil
			r.rep.Note("interrupted: finishing the open blobs (at most %s)", r.o.Grace)
			r.stop()
			t := time.NewTimer(r.o.Grace)
			defer t.Stop()
			grace = t.C
		case <-grace:
			r.rep.Note("grace period over: dropping the open blobs")
			r.cancel(errGrace)
			return
		}
	}
}

// dropAll aborts what is still open when all slots have ended.
func (r *run) dropAll() error {
	r.mu.Lock()
	var jobs []*job
	for _, js := range r.open {
		jobs = append(jobs, js...)
	}
	r.mu.Unlock()
	var errs []error
	for _, j := range jobs {
		errs = append(errs, j.drop())
	}
	return errors.Join(errs...)
}

// spaceError tells a full disk apart from other errors of writing.
func (r *run) spaceError(err error, need int64) error {
	if err == nil || errors.Is(err, store.ErrDiskFull) ||
		!errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	se := &store.SpaceError{Path: r.dir, Need: need, Keep: r.keep}
	if sp, serr := fsx.SpaceAt(r.dir); serr == nil {
		se.Free = sp.Free
	}
	return fmt.Errorf("%w (%w)", se, err)
}

// allSealed reports whether every blob is committed.
func (r *run) allSealed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.sealed) == r.idx.Blobs()
}
