package extract

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// Names of a generation's indexes.
const (
	planName  = "plan.ebi"
	indexName = "index.ebi"
	headName  = "target_head.safetensors"
)

// openPlan reads the plan in force and the generation that it belongs to, if
// there is one.
func (r *run) openPlan() error {
	return r.ws.View(func(rd store.Reader) error {
		var ok bool
		var err error
		if r.plan, ok, err = rd.Plan(); err != nil {
			return err
		}
		if !ok {
			return errors.New("extract: there is no plan: make one first")
		}
		if r.plan.Generation == 0 {
			return nil
		}
		g, ok, err := rd.Generation(r.plan.Generation)
		if ok && (g.State == store.GenBuilding || g.State == store.GenSealed) {
			r.gen = g
		}
		return err
	})
}

// row returns the generation as the ledger has it.
func (r *run) row() store.GenerationRow {
	g := r.gen
	_ = r.ws.View(func(rd store.Reader) error { // on an error the older row serves
		if now, ok, err := rd.Generation(r.gen.ID); err == nil && ok {
			g = now
		}
		return nil
	})
	return g
}

func (r *run) close() error {
	var errs []error
	if r.src != nil {
		errs = append(errs, r.src.Close())
	}
	if r.idx != nil {
		errs = append(errs, r.idx.Close())
	}
	return errors.Join(errs...)
}

// openGeneration creates or resumes the generation: row, directory, plan.
func (r *run) openGeneration(ctx context.Context) error {
	var err error
	if r.gen.ID != 0 {
		r.dir = r.ws.GenerationDir(r.gen)
	}
	if r.idx, err = r.findPlan(); err != nil {
		return err
	}
	r.measure()
	if r.gen.ID == 0 {
		if err := r.newGeneration(ctx); err != nil {
			return err
		}
	}
	r.dir = r.ws.GenerationDir(r.gen)
	if err := r.notLost(); err != nil {
		return err
	}
	if err := r.fs.Point(fault.ExtractBegin); err != nil {
		return err
	}
	if err := r.fs.MkdirAll(r.dir); err != nil {
		return err
	}
	if _, err := r.fs.SweepTemp(r.dir); err != nil {
		return err
	}
	if err := genindex.CreateLease(r.fs, r.dir); err != nil {
		return err
	}
	if err := r.copyPlan(ctx); err != nil {
		return err
	}
	r.meta = r.blobsMeta()
	if r.vals, err = valuesOf(r.meta.GivenDType()); err != nil {
		return err
	}
	sp, err := fsx.SpaceAt(r.dir)
	if err != nil {
		return err
	}
	r.keep = r.o.Reserve.Of(sp.Total)
	r.room = newRoom(r)
	return r.loadProgress(ctx)
}

// notLost fails where blobs of the generation are committed and its directory is
// not there: made anew it would only hide that.
func (r *run) notLost() error {
	if _, err := os.Lstat(r.dir); !errors.Is(err, os.ErrNotExist) {
		return nil // MkdirAll says what else is wrong
	}
	var blobs []store.BlobRow
	if err := r.ws.View(func(rd store.Reader) (err error) {
		blobs, err = rd.Blobs(r.gen.ID)
		return err
	}); err != nil || len(blobs) == 0 {
		return err
	}
	return &store.CorruptError{Path: r.dir, Offset: -1, Err: fmt.Errorf("the directory is missing, and with it %d committed blobs", len(blobs)),
		Hint: "put " + r.dir + " back from a copy; without one, 'eaglebatch run --redo extract' computes the generation anew"}
}

// blobsMeta is the header of own blobs.
func (r *run) blobsMeta() blob.Meta {
	m := r.idx.Meta()
	b := m.Blob
	b.Generation, b.Blob = r.gen.ID, 0
	if len(b.Datasets) == 0 {
		b.Datasets = m.Datasets
	}
	return b
}

// measure goes over the plan once for what scheduling needs.
func (r *run) measure() {
	m := r.idx.Meta().Blob
	r.cost.tokenBytes, r.cost.kept = len(m.Layers)*m.GivenRowBytes(), len(m.Layers)*m.RowBytes()
	r.cost.positions, r.cost.served = make([]int64, r.idx.Blobs()), make([]int64, r.idx.Blobs())
	var rows int64
	for no := range r.idx.Blobs() {
		r.cost.entries += int64(r.idx.BlobEntries(no))
		rows += r.blobTokens(no)
	}
	r.cost.expect(r.plan, rows)
	needs := map[uint32]bool{}
	for i := range r.idx.Positions() {
		p := r.idx.Position(i)
		if p.Gen == 0 {
			r.cost.positions[p.Blob]++
			r.cost.served[p.Blob] += int64(p.Rows)
			continue
		}
		r.cost.reused++
		r.cost.reusedToks += int64(p.Rows)
		needs[p.Gen] = true
	}
	r.gen.Needs = nil
	for id := range needs {
		r.gen.Needs = append(r.gen.Needs, id)
	}
	slices.Sort(r.gen.Needs)
}

// newGeneration enters the generation into the ledger. Others that are still
// being built belong to plans no longer in force: nobody will go on with them.
func (r *run) newGeneration(ctx context.Context) error {
	return r.ws.Update(ctx, "new generation", func(tx *store.Tx) error {
		gens, err := tx.Generations()
		if err != nil {
			return err
		}
		id, err := tx.Next("generation")
		if err != nil {
			return err
		}
		now := time.Now().UTC()
		g := store.GenerationRow{
			ID: id, Name: r.o.Name, Origin: "made", State: store.GenBuilding, Kind: r.o.Kind,
			Path: filepath.Join("generations", fmt.Sprintf("%06d", id)), Plan: r.plan.ID,
			Identity: r.o.Identity, Needs: r.gen.Needs, Created: now, Changed: now,
			Samples: r.cost.reused, Tokens: r.cost.reusedToks,
			Synthetic: r.idx.Meta().Blob.Synthetic,
		}
		if g.Name == "" {
			g.Name = fmt.Sprintf("gen-%06d", id)
		}
		if g.Kind == "" {
			g.Kind = r.plan.Kind
		}
		if g.Kind == "" {
			g.Kind = "states"
		}
		if g.Identity == nil {
			g.Identity = r.plan.Identity
		}
		for _, old := range gens {
			if old.Name == g.Name && old.Path != "" && old.State != store.GenAbandoned {
				return fmt.Errorf("extract: generation %d is called %q already", old.ID, g.Name)
			}
			if old.State == store.GenBuilding {
				old.State, old.Changed = store.GenAbandoned, now
				if err := tx.PutGeneration(old); err != nil {
					return err
				}
			}
		}
		r.plan.Generation = id
		r.gen = g
		return errors.Join(tx.PutGeneration(g), tx.PutPlan(r.plan), r.putPhase(tx, 0, ""))
	})
}

// copyPlan puts the plan into the generation, where readers look for it.
func (r *run) copyPlan(ctx context.Context) error {
	to := filepath.Join(r.dir, planName)
	if r.samePlan(ctx, to) == nil {
		return nil
	}
	if err := r.spaceError(r.copyFile(r.ws.PlanPath(r.plan.ID), to), r.plan.Samples*40); err != nil {
		return err
	}
	return r.samePlan(ctx, to)
}

// samePlan fails where the file at path is not the plan in force: the
// generation's manifest will vouch for it.
func (r *run) samePlan(ctx context.Context, path string) error {
	want, err := blob.HashFile(ctx, r.ws.PlanPath(r.plan.ID))
	if err != nil {
		return err
	}
	got, err := blob.HashFile(ctx, path)
	if err == nil && got != want {
		err = &store.CorruptError{Path: path, Offset: -1, Err: errors.New("is not the plan that it was copied from"), Hint: "run again: it is copied anew"}
	}
	return err
}

// loadProgress finds what is committed, adopts what a crash left complete, and
// lists the rest.
func (r *run) loadProgress(ctx context.Context) error {
	var blobs []store.BlobRow
	err := r.ws.View(func(rd store.Reader) (err error) {
		blobs, err = rd.Blobs(r.gen.ID)
		return err
	})
	if err != nil {
		return err
	}
	r.sense, err = newSense(r)
	if err != nil {
		return err
	}
	if err := r.loadKnown(); err != nil {
		return err
	}
	for _, b := range blobs {
		if int(b.No) >= r.idx.Blobs() {
			return &store.CorruptError{Path: r.dir, Key: blobName(int(b.No)), Offset: -1, Err: errors.New("the plan has no such blob")}
		}
		st, err := os.Stat(r.blobPath(int(b.No)))
		if err != nil || st.Size() != b.Bytes {
			return &store.CorruptError{Path: r.blobPath(int(b.No)), Offset: -1, Err: errors.Join(err, fmt.Errorf("committed with %d bytes", b.Bytes)),
				Hint: "restore " + r.blobPath(int(b.No)) + " from a copy; without one, 'eaglebatch run --redo extract' computes the generation anew"}
		}
		r.sealed[int(b.No)] = true
		r.cost.measured(b)
	}
	for no := range r.idx.Blobs() {
		if !r.sealed[no] {
			if err := r.adopt(ctx, no); err != nil {
				return err
			}
		}
	}
	r.gen = r.row()
	r.handed = r.cost.reused
	for no := range r.idx.Blobs() {
		if r.sealed[no] {
			r.handed += r.cost.positions[no]
		} else {
			r.todo = append(r.todo, no)
		}
	}
	return nil
}

// loadKnown lists what older generations had to leave out.
func (r *run) loadKnown() error {
	r.known = map[knownKey]bool{}
	return r.ws.View(func(rd store.Reader) error {
		gens, err := rd.Generations()
		if err != nil {
			return err
		}
		for _, g := range gens {
			if g.ID == r.gen.ID || g.State != store.GenSealed {
				continue
			}
			rows, err := rd.Quarantine(g.ID)
			if err != nil {
				return err
			}
			for _, q := range rows {
				r.known[knownKey{q.Dataset, q.Sample}] = true
			}
		}
		return nil
	})
}

// extract computes the blobs that are to do.
func (r *run) extract(ctx context.Context) error {
	if len(r.todo) == 0 || r.over() {
		return nil
	}
	if err := r.describe(ctx); err != nil {
		return err
	}
	var err error
	if r.src, err = openSource(r.ws, r.plan, r.idx.Meta().Datasets, min(r.o.Memory/8, 512<<20), r.failEarly); err != nil {
		return err
	}
	if r.canary, err = newCanary(ctx, r); err != nil {
		return err
	}
	budget := r.o.Memory / 4 / int64(r.info.Slots)
	for i := range r.info.Slots {
		r.slots = append(r.slots, newSlot(r, i, budget))
	}
	return r.extractAll(ctx)
}

// failEarly ends the run for an error of the sample store, which may come
// before there is anything to cancel.
func (r *run) failEarly(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	if r.cancel != nil {
		r.cancel(err)
	}
	r.cond.Broadcast()
}
