package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"eaglebatch/store"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
)

// planNeeds lists the generations that the plan in force, and the plans of
// generations being built, point into.
func planNeeds(ctx context.Context, ws *store.Workspace, r store.Reader, gens []store.GenerationRow) ([]uint32, error) {
	paths := map[string]bool{}
	if plan, ok, err := r.Plan(); err != nil {
		return nil, err
	} else if ok {
		paths[ws.PlanPath(plan.ID)] = true
	}
	for _, g := range gens {
		if g.State == store.GenBuilding && g.Kind != retain.KindSamples && g.Plan != 0 {
			paths[ws.PlanPath(g.Plan)] = true
		}
	}
	found := map[uint32]bool{}
	for path := range paths {
		if err := indexNeeds(ctx, path, found); err != nil {
			return nil, fmt.Errorf("what the plan needs cannot be told, so that nothing may go: %w", err)
		}
	}
	out := make([]uint32, 0, len(found))
	for id := range found {
		out = append(out, id)
	}
	slices.Sort(out)
	return out, nil
}

func indexNeeds(ctx context.Context, path string, found map[uint32]bool) (err error) {
	f, err := genindex.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for i := range f.Positions() {
		if i&0xffff == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if g := f.Position(i).Gen; g != 0 {
			found[g] = true
		}
	}
	return nil
}
