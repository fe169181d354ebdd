package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/internal/config"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// The time between two looks for an engine that is not there yet.
const (
	firstLook = time.Second
	lastLook  = 30 * time.Second
)

// preflight finds out before hours are spent whether the work can be done:
// the workspace is writable (it was just opened), the engine answers one small
// sample, and there is some room at all.
func (j *job) preflight(ctx context.Context, l limits) error {
	var done bool
	err := j.ws.View(func(r store.Reader) error {
		row, ok, err := r.Phase(store.PhaseExtract)
		done = ok && row.State == store.Done
		return err
	})
	if err != nil || done {
		return err
	}
	j.rep.Start(progress.Phase{Name: "preflight", Unit: "checks", Total: 1})
	defer j.rep.Finish()
	b, err := j.newBackend(ctx)
	if err != nil {
		return err
	}
	ctx, stop := j.phaseContext(ctx)
	defer stop()
	info, err := j.tryEngine(ctx, b, l)
	if err = errors.Join(err, b.Close()); err != nil {
		return cancelled(ctx, fmt.Errorf("preflight: %w", err))
	}
	if info.Hidden != j.model.Hidden {
		return fmt.Errorf("%w: preflight: the engine serves hidden size %d, %s has %d", config.ErrConfig, info.Hidden, j.cfg.Model, j.model.Hidden)
	}
	if !slices.Equal(info.Capture, j.layers) {
		return fmt.Errorf("%w: preflight: the engine returns layers %v, the plan wants %v", config.ErrConfig, info.Capture, j.layers)
	}
	j.rep.Add(progress.Delta{Units: 1})
	return nil
}

// tryEngine has the engine answer one small sample once it is there.
func (j *job) tryEngine(ctx context.Context, b backend.Backend, l limits) (info backend.Info, err error) {
	if err := j.awaitEngine(ctx, b, l); err != nil {
		return info, err
	}
	// An engine may load its model first, and one that hangs says nothing.
	stall := j.cfg.Extract.Stall
	if stall <= 0 {
		stall = time.Hour
	}
	sctx, stop := context.WithTimeoutCause(ctx, stall, fmt.Errorf("no answer for %s: %w", stall, backend.ErrUnavailable))
	defer stop()
	info, err = preflight(sctx, b, j.preflightTokens(), j.rep.Note)
	if err != nil && sctx.Err() != nil {
		err = context.Cause(sctx)
	}
	if err == nil {
		err = j.suitServers(ctx, b)
	}
	return info, err
}

// awaitEngine waits for an engine that cannot be reached, which a server that is
// still starting cannot, as long as extract.patience and --until say.
func (j *job) awaitEngine(ctx context.Context, b backend.Backend, l limits) error {
	began, patience := time.Now(), j.cfg.Extract.Patience
	defer j.rep.Waiting("")
	for look := firstLook; ; look = min(2*look, lastLook) {
		_, err := b.Describe(ctx)
		if err == nil || ctx.Err() != nil || !errors.Is(err, backend.ErrUnavailable) {
			return err
		}
		left := patience - time.Since(began)
		if left <= 0 {
			return fmt.Errorf("no engine for %s (extract.patience): %w", human.Duration(patience), err)
		}
		if !l.until.IsZero() && time.Now().Add(min(look, left)).After(l.until) {
			return fmt.Errorf("%w while waiting for the engine: %w", store.ErrStopped, err)
		}
		j.rep.Note("preflight: %v; looking again, for %s more (extract.patience)", err, human.Duration(left))
		j.rep.Waiting("the engine")
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(look, left)):
		}
	}
}

func (j *job) preflightTokens() []uint32 {
	out := make([]uint32, 8)
	for i := range out {
		out[i] = uint32(i+1) % uint32(max(1, j.model.Vocab))
	}
	return out
}

// preflight puts one short sample through a backend: through the first slot whose
// engine answers it, since a run needs no more. What the others say is told to
// note.
func preflight(ctx context.Context, b backend.Backend, ids []uint32, note func(format string, args ...any)) (backend.Info, error) {
	info, err := b.Describe(ctx)
	if err != nil {
		return info, err
	}
	var errs []error
	for slot := range info.Slots {
		err := askSlot(ctx, b, slot, ids)
		if err == nil {
			for _, err := range errs {
				note("preflight: %v; the run goes on without it, and tries it again", err)
			}
			return info, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil || !errors.Is(err, backend.ErrUnavailable) {
			break
		}
	}
	return info, errors.Join(errs...)
}

// askSlot puts a sample through one engine. A small and harmless one that it
// refuses is its own failure.
func askSlot(ctx context.Context, b backend.Backend, slot int, ids []uint32) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan backend.Request, 1)
	in <- backend.Request{ID: 1, Tokens: ids, Name: "the preflight's sample"}
	close(in)
	rows := 0
	err := b.Serve(ctx, slot, in, func(c backend.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		rows += c.Rows
		return nil
	})
	name := ""
	if n, ok := b.(backend.Namer); ok {
		name = n.Name(slot) + ": "
	}
	var refused *backend.SampleError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("%sa sample of %d tokens is not answered: %w: %w", name, len(ids), err, backend.ErrUnavailable)
	case err == nil && rows != len(ids):
		return fmt.Errorf("%s%w: %d rows for a sample of %d tokens", name, backend.ErrUnavailable, rows, len(ids))
	}
	return err
}
