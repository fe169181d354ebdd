package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"eaglebatch/extract"
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
	info, err := preflight(ctx, b, j.preflightTokens(), j.rep.Note)
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
	k.Seconds = steady(began, r.came) * p.scoring()
	k.Samples, k.Failed, k.Tokens = int64(len(todo)-r.failed), int64(r.failed), r.tokens
	k.RawBytes, k.Bytes = info.RawBytes, info.Bytes
	if r.failed > 0 {
		p.j.rep.Note("probe: %d of %d samples failed, the first of them: %v", r.failed, len(todo), r.why)
	}
	// One list at a time lies on the disk.
	return k, p.j.fs.Remove(path)
}

// scoring is how much longer an engine on this machine's processors takes since
// the sense of its states is scored beside it.
func (p *prober) scoring() float64 {
	if p.info.Engine != "native" {
		return 1
	}
	threads := p.j.cfg.Extract.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	return 1 + 1/float64(extract.ScoringShare*threads)
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

func (p *prober) load(ctx context.Context, list []plan.ProbeSample) (out []*samples.Sample, err error) {
	gens := map[uint32]int64{}
	for _, x := range list {
		gens[x.SamplesGen] = 0 // rows: as many as there are
	}
	set, err := samples.NewSet(p.j.ws.SamplesDir, gens, samples.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	for _, x := range list {
		s, err := set.Get(ctx, x.SamplesGen, x.Dataset, x.Index)
		if err != nil {
			return nil, err
		}
		s.IDs, s.Mask = s.IDs[x.From:x.To], s.Mask[x.From:x.To]
		out = append(out, s)
	}
	return out, nil
}
