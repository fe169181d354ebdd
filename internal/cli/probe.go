package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

// probe runs n samples through the configured engine and codec into a scratch
// directory and records what that showed, for the next plan.
func (j *job) probe(ctx context.Context, n int) error {
	if err := j.require(ctx, store.PhaseMerge, store.PhaseShuffle); err != nil {
		return err
	}
	o, err := j.planOptions()
	if err != nil {
		return err
	}
	if o.Rows != blob.RowsAll {
		o.Meta.Rows = o.Rows
	}
	b, err := j.newBackend(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	// The engine's start is not part of its rate.
	info, err := preflight(ctx, b, j.preflightTokens())
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := probeSuits(info, o.Meta); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	dir := filepath.Join(j.ws.Dir(), "probe")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := j.fs.MkdirAll(dir); err != nil {
		return err
	}
	p := &prober{j: j, b: b, info: info, meta: o.Meta, dir: dir, memory: int64(j.cfg.Extract.Memory) / 2}
	res, err := plan.Probe(ctx, j.ws, o, n, p.run, j.rep)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	j.rep.Note("probe: %s samples, %s tokens, %s tokens/s, %.3f of raw bytes, %d failed",
		human.Count(res.Samples), human.Count(res.Tokens), human.Count(int64(res.Rate)), res.Ratio, res.Failed)
	for _, k := range res.Buckets {
		j.rep.Note("  up to %s tokens: %s samples, %s tokens/s", human.Count(k.MaxTokens), human.Count(k.Samples), human.Count(int64(float64(k.Tokens)/max(k.Seconds, 1e-9))))
	}
	return j.runner().Redo(ctx, "plan")
}

// probeSuits refuses an engine whose rows are not those that the plan stores:
// nothing converts them, and what it showed would be of another shape.
func probeSuits(i backend.Info, m blob.Meta) error {
	switch {
	case i.Hidden != m.Hidden:
		return fmt.Errorf("%s: hidden size %d, the plan has %d", i.Engine, i.Hidden, m.Hidden)
	case !slices.Equal(i.Capture, m.Layers):
		return fmt.Errorf("%s: captures layers %v, the plan has %v", i.Engine, i.Capture, m.Layers)
	case i.DType != m.GivenDType():
		key := "plan.dtype"
		if m.Source != "" {
			key = "extract.engine_dtype"
		}
		return fmt.Errorf("%s: gives %s, the plan has %s: set %s to %s", i.Engine, i.DType, m.GivenDType(), key, i.DType)
	}
	return nil
}

// prober runs lists of samples of like length.
type prober struct {
	j      *job
	b      backend.Backend
	info   backend.Info
	meta   blob.Meta
	dir    string
	memory int64
	seq    int
}

// run is a plan.ProbeRunner.
func (p *prober) run(ctx context.Context, list []plan.ProbeSample) (k plan.Bucket, err error) {
	todo, err := p.load(ctx, list)
	if err != nil {
		return k, err
	}
	if err := p.room(todo); err != nil {
		return k, err
	}
	p.seq++
	m := p.meta
	m.Datasets = []string{"probe"}
	path := filepath.Join(p.dir, blob.FileName(uint32(p.seq)))
	w, err := blob.Create(path, m, blob.WriterOptions{FS: p.j.fs, Threads: p.j.cfg.Extract.Threads})
	if err != nil {
		return k, err
	}
	r := newProbeRun(ctx, w, todo, m, p.memory)
	began := time.Now()
	if err := r.serve(ctx, p.b, max(1, p.info.Slots)); err != nil {
		return k, errors.Join(err, w.Abort())
	}
	if r.failed == len(todo) {
		// A blob without entries says nothing of the ratio.
		p.j.rep.Note("probe: all %d samples of up to %d tokens failed: %v", len(todo), len(todo[0].IDs), r.why)
		return plan.Bucket{Failed: int64(r.failed)}, w.Abort()
	}
	info, err := w.Commit(ctx)
	if err != nil {
		return k, err
	}
	k.Seconds = time.Since(began).Seconds()
	k.Samples, k.Failed, k.Tokens = int64(len(todo)-r.failed), int64(r.failed), r.tokens
	k.RawBytes, k.Bytes = info.RawBytes, info.Bytes
	if r.failed > 0 {
		p.j.rep.Note("probe: %d of %d samples failed, the first of them: %v", r.failed, len(todo), r.why)
	}
	// One list at a time lies on the disk.
	return k, p.j.fs.Remove(path)
}

// room refuses a list whose raw states would not leave the reserve free.
func (p *prober) room(todo []*samples.Sample) error {
	var need int64
	for _, s := range todo {
		need += int64(len(s.IDs)) * int64(len(p.meta.Layers)*p.meta.RowBytes())
	}
	sp, err := fsx.SpaceAt(p.dir)
	if err != nil {
		return err
	}
	if spare := sp.Free - p.j.cfg.Plan.Reserve.Of(sp.Total); need > spare {
		return withHint(fmt.Errorf("%w: %d samples need %s in %s, which has %s above the reserve", store.ErrDiskFull, len(todo), human.Bytes(need), p.dir, human.Bytes(max(0, spare))),
			"free space, or probe fewer samples")
	}
	return nil
}

func (p *prober) load(ctx context.Context, list []plan.ProbeSample) ([]*samples.Sample, error) {
	var out []*samples.Sample
	open := map[uint32]*samples.Store{}
	defer func() {
		for _, s := range open {
			s.Close()
		}
	}()
	for _, x := range list {
		st, ok := open[x.SamplesGen]
		if !ok {
			var err error
			if st, err = samples.Open(p.j.ws.SamplesDir(x.SamplesGen), 0, samples.Options{}); err != nil {
				return nil, err
			}
			open[x.SamplesGen] = st
		}
		s, err := st.Get(ctx, x.Dataset, x.Index)
		if err != nil {
			return nil, err
		}
		s.IDs, s.Mask = s.IDs[x.From:x.To], s.Mask[x.From:x.To]
		out = append(out, s)
	}
	return out, nil
}

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
