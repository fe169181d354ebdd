package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"eaglebatch/extract"
	"eaglebatch/extract/model"
	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/internal/pipeline"
	"eaglebatch/plan"
	"eaglebatch/store"
)

// merge, shuffle, plan and the rest bring one phase to done each; they are the
// steps of run and the body of the commands of the same names.

func (j *job) merge(ctx context.Context) (bool, error) {
	o, err := j.ingestOptions()
	if err != nil {
		return false, err
	}
	return j.do(ctx, j.mergePhase(o))
}

func (j *job) shuffle(ctx context.Context) (bool, error) {
	if err := j.require(ctx, store.PhaseMerge); err != nil {
		return false, err
	}
	return j.do(ctx, j.shufflePhase())
}

func (j *job) plan(ctx context.Context) (bool, error) {
	if err := j.require(ctx, store.PhaseMerge, store.PhaseShuffle); err != nil {
		return false, err
	}
	o, err := j.planOptions()
	if err != nil {
		return false, err
	}
	did, err := j.do(ctx, j.planPhase(o))
	if err != nil || !did {
		return did, err
	}
	return true, j.abandonOpen(ctx)
}

// do runs a phase that stops at once when interrupted.
func (j *job) do(ctx context.Context, p pipeline.Phase) (bool, error) {
	ctx, stop := j.phaseContext(ctx)
	defer stop()
	did, err := j.runner().Do(ctx, p)
	return did, cancelled(ctx, err)
}

// limits say where an extraction stops by itself.
type limits struct {
	limit int64
	until time.Time
}

// extractPhase extracts the plan in force. result is filled by Run.
func (j *job) extractPhase(l limits, kind string, result *extract.Result) pipeline.Phase {
	return pipeline.Phase{
		Name: store.PhaseExtract,
		Fingerprint: func(context.Context) ([]store.Part, error) {
			p, err := j.planRow()
			return append(j.identity(),
				store.Part{Key: "plan", Value: fmt.Sprint(p.ID)},
				store.Part{Key: "codec", Value: p.Codec}), err
		},
		Run: func(ctx context.Context) error {
			o, done, err := j.extractOptions(ctx)
			if err != nil {
				return err
			}
			defer done()
			o.Limit, o.Until, o.Kind = l.limit, l.until, kind
			r, err := extract.Run(ctx, j.ws, o, j.rep)
			*result = r
			if err == nil && r.Stopped {
				return store.ErrStopped
			}
			return err
		},
		Reset: func(ctx context.Context) error { return extract.Abandon(ctx, j.ws) },
		Cost:  func() string { return "the samples not sealed yet are computed anew" + j.openCost() },
	}
}

// extract runs the extraction; an interrupt finishes the open blobs first.
func (j *job) extract(ctx context.Context, l limits, kind string) (extract.Result, bool, error) {
	var r extract.Result
	if err := j.require(ctx, store.PhaseMerge, store.PhaseShuffle, store.PhasePlan); err != nil {
		return r, false, err
	}
	did, err := j.runner().Do(ctx, j.extractPhase(l, kind, &r))
	if errors.Is(err, store.ErrStopped) && j.interrupted() {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	return r, did, cancelled(ctx, err)
}

func (e *env) interrupted() bool {
	select {
	case <-e.interrupt:
		return true
	default:
		return false
	}
}

// extractOptions opens backend and head; the returned func closes them.
func (j *job) extractOptions(ctx context.Context) (extract.Options, func(), error) {
	x := j.cfg.Extract
	b, err := j.newBackend(ctx)
	if err != nil {
		return extract.Options{}, nil, err
	}
	closers := []func() error{b.Close}
	done := func() {
		for _, c := range closers {
			if err := c(); err != nil {
				j.rep.Note("closing the engine: %v", err)
			}
		}
	}
	o := extract.Options{
		Backend: b, MinTop1: x.MinTop1, Memory: int64(x.Memory), Threads: x.Threads,
		MaxQuarantined: x.MaxQuarantined, Reserve: j.cfg.Plan.Reserve,
		Patience: x.Patience, Stall: x.Stall, Grace: x.Grace, Interrupt: j.interrupt,
	}
	if j.cfg.Extract.Backend == "synthetic" {
		return o, done, nil
	}
	h, err := model.OpenHead(j.cfg.Model)
	switch {
	case err == nil:
		o.Head = h
		closers = append(closers, h.Close)
	case isNoWeights(err):
		j.rep.Note("%s holds no weights: states are not checked for sense and no target_head.safetensors is kept", j.cfg.Model)
	default:
		done()
		return o, nil, fmt.Errorf("model %q: %w", j.cfg.Model, err)
	}
	return o, done, nil
}

// decide turns the plan's decision into going on or waiting for a human. It
// seals a proof first where there is room for it.
func (j *job) decide(ctx context.Context) error {
	p, room, open, err := j.undecided()
	if err == nil && p.Samples == 0 {
		err := fmt.Errorf("%w: the plan holds no sample: %s dropped, %s over length, %s emptied by the cap of %s tokens (their supervised part lies behind it)",
			config.ErrConfig, human.Count(p.Dropped), human.Count(p.OverLength), human.Count(p.Emptied), human.Count(p.MaxTokens))
		if p.OverLength+p.Emptied == 0 {
			return err
		}
		return withHint(err, "raise plan.max_tokens, or change plan.overlong: '%s' shows what other caps keep", j.command(j.c, "plan --what-if"))
	}
	if err != nil {
		return err
	}
	cautions := plan.Cautions(p)
	for _, c := range cautions {
		j.rep.Note("%s", c)
	}
	if !open {
		return nil
	}
	without, err := j.proof(ctx, p)
	if err != nil {
		return err
	}
	// The proof measured what states take on disk: what looked short may fit.
	if p, room, open, err = j.undecided(); err != nil || !open {
		return err
	}
	found, err := j.judgeProof(ctx)
	if err != nil {
		return err
	}
	rep, err := j.report(ctx)
	if err != nil {
		return err
	}
	need := human.Sized(room.Need + room.Beside)
	d := &store.DecisionError{What: fmt.Sprintf("the plan needs %s and the disk is %s short of it above the reserve", need, human.Sized(p.ShortBy))}
	if p.Decision == store.FitsAfterGC {
		d.What = fmt.Sprintf("the plan needs %s and %s are free above the reserve: it fits once old states are deleted (%s are reclaimable)", need, human.Sized(max(0, p.DiskFree-p.Reserve)), human.Sized(p.Reclaimable))
	}
	d.Details = append(cautions, rep.Room.Explain()...)
	d.Details = append(d.Details, append(found, without...)...)
	list, commands, err := j.choices(rep)
	if err != nil {
		return err
	}
	for i, ch := range list {
		d.Details = append(d.Details, ch.Text)
		if commands[i] != "" {
			d.Commands = append(d.Commands, commands[i])
		}
	}
	return d
}

// undecided says whether the plan in force needs room that only a decision can
// make. What was short when the plan was made may fit by now; what is half
// extracted was decided before.
func (j *job) undecided() (p store.PlanRow, room plan.Room, open bool, err error) {
	if p, err = j.planRow(); err != nil || p.NewSamples == 0 || p.Generation != 0 {
		return p, room, false, err
	}
	now := p
	if p.Decision != store.Fits {
		err = j.ws.View(func(r store.Reader) (err error) {
			now, room, err = plan.Reassess(j.ws, r, p, j.cfg.Plan.Reserve)
			return err
		})
	}
	decided := len(j.gcNames()) > 0 && room.Enough()
	return now, room, now.Decision != store.Fits && !decided, err
}
