package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/human"
	"eaglebatch/plan"
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

// probe runs n samples through the configured engine and codec into a scratch
// directory and records what that showed, for the next plan.
func (j *job) probe(ctx context.Context, n int) error {
	o, err := j.planOptions()
	if err != nil {
		return err
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
	p.seq++
	m := p.meta
	m.Datasets = []string{"probe"}
	w, err := blob.Create(filepath.Join(p.dir, fmt.Sprintf("blob-%06d.ebb", p.seq)), m, blob.WriterOptions{FS: p.j.fs, Threads: p.j.cfg.Extract.Threads})
	if err != nil {
		return k, err
	}
	r := &probeRun{ctx: ctx, w: w, todo: todo, rows: map[uint64][]byte{}, credit: p.memory, whole: p.memory, rowBytes: int64(len(m.Layers) * m.RowBytes())}
	r.free = sync.NewCond(&r.mu)
	began := time.Now()
	if err := r.serve(ctx, p.b, max(1, p.info.Slots)); err != nil {
		return k, errors.Join(err, w.Abort())
	}
	info, err := w.Commit(ctx)
	if err != nil {
		return k, err
	}
	k.Seconds = time.Since(began).Seconds()
	k.Samples, k.Failed, k.Tokens = int64(len(todo)-r.failed), int64(r.failed), r.tokens
	k.RawBytes, k.Bytes = info.RawBytes, info.Bytes
	return k, nil
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
	rows   map[uint64][]byte
	credit int64
	whole  int64 // credit when nothing is in flight
	got    int   // rows written of the sample that goes through alone
	failed int
	tokens int64
	err    error
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
	return r.err
}

func (r *probeRun) send(ctx context.Context, in chan<- backend.Request) {
	stop := context.AfterFunc(ctx, r.free.Broadcast)
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
		case in <- backend.Request{ID: uint64(i), Tokens: s.IDs}:
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
	if c.ID >= uint64(len(r.todo)) {
		return fmt.Errorf("%w: an answer to request %d, which was not sent", backend.ErrUnavailable, c.ID)
	}
	s := r.todo[c.ID]
	if c.Err != nil {
		r.failed++
		r.done(c.ID)
		return nil
	}
	total := int64(len(s.IDs)) * r.rowBytes
	if total > r.whole {
		return r.stream(s, c)
	}
	r.rows[c.ID] = append(r.rows[c.ID], c.Data...)
	if int64(len(r.rows[c.ID])) < total {
		return nil
	}
	defer r.done(c.ID)
	if err := r.begin(s); err != nil {
		return err
	}
	return r.end(s, r.rows[c.ID], len(s.IDs))
}

// stream writes the rows of a sample that goes through alone as they come.
func (r *probeRun) stream(s *samples.Sample, c backend.Chunk) error {
	if r.got == 0 {
		if err := r.begin(s); err != nil {
			return err
		}
	}
	if r.got += c.Rows; r.got < len(s.IDs) {
		return r.w.Rows(r.ctx, c.Data, c.Rows)
	}
	r.got = 0
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
	r.credit += r.need(r.todo[id])
	r.free.Broadcast()
}
