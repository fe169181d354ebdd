package extract

import (
	"context"
	"errors"
	"sync"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// Run extracts what the plan in force still lacks and seals the generation.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (res Result, err error) {
	if o, err = o.withDefaults(); err != nil {
		return Result{}, err
	}
	r := &run{
		o: o, ws: ws, fs: ws.FS(), rep: rep,
		open: map[int][]*job{}, claimed: map[int]bool{}, sealed: map[int]bool{},
		trouble: map[entryKey]*trouble{},
	}
	r.cond = sync.NewCond(&r.mu)
	if err := r.openPlan(); err != nil {
		return Result{}, err
	}
	if r.gen.State == store.GenSealed {
		return Result{Generation: r.gen, Sealed: true}, nil
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.openGeneration(ctx); err != nil {
		return Result{}, err
	}
	rep.Start(progress.Phase{Name: store.PhaseExtract, Unit: unit, Done: r.gen.Distinct + r.gen.Quarantined, Total: r.cost.entries})
	defer rep.Finish()
	if err := r.extract(ctx); err != nil {
		return Result{Generation: r.row()}, err
	}
	if !r.allSealed() {
		return Result{Generation: r.row(), Stopped: true}, nil
	}
	if err := r.seal(ctx); err != nil {
		return Result{Generation: r.row()}, err
	}
	return Result{Generation: r.gen, Sealed: true}, nil
}

// Abandon gives up the generation that the plan in force was being extracted
// to, or was extracted to, so that the next Run begins a new one.
func Abandon(ctx context.Context, ws *store.Workspace) error {
	return ws.Update(ctx, "abandon", func(tx *store.Tx) error {
		p, ok, err := tx.Plan()
		if err != nil || !ok || p.Generation == 0 {
			return err
		}
		g, ok, err := tx.Generation(p.Generation)
		if err != nil {
			return err
		}
		if ok && g.State == store.GenBuilding {
			g.State, g.Changed = store.GenAbandoned, time.Now().UTC()
			if err := tx.PutGeneration(g); err != nil {
				return err
			}
		}
		p.Generation = 0
		return tx.PutPlan(p)
	})
}
