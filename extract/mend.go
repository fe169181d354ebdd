package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"eaglebatch/extract/model"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// findPlan opens the run's plan. It lies in two places, under plans/ and in the
// generation: where one is damaged or gone, the other is made its copy.
func (r *run) findPlan() (*genindex.File, error) {
	main, err := genindex.Open(r.ws.PlanPath(r.plan.ID))
	if err == nil || !isDamage(err) {
		return main, err
	}
	if r.dir != "" {
		if idx, cerr := genindex.Open(filepath.Join(r.dir, planName)); cerr == nil {
			r.rep.Note("%v: made anew from the generation's copy", err)
			return idx, r.copyFile(filepath.Join(r.dir, planName), r.ws.PlanPath(r.plan.ID))
		}
	}
	return nil, &store.CorruptError{Path: r.ws.PlanPath(r.plan.ID), Offset: -1, Err: err,
		Hint: "'eaglebatch run --redo plan' makes the plan anew; what a generation not sealed yet has computed is computed again"}
}

// isDamage: the file is gone or not what was written.
func isDamage(err error) bool {
	var c *blob.CorruptError
	return errors.As(err, &c) || errors.Is(err, os.ErrNotExist)
}

func (r *run) copyFile(from, to string) error {
	in, err := fsx.Open(from)
	if err != nil {
		return err
	}
	err = r.fs.WriteFileAtomic(to, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
	return errors.Join(err, in.Close())
}

// MendPlan makes sure that the plan in force and the copy that its generation
// has of it are there and whole, each from the other.
func MendPlan(ctx context.Context, ws *store.Workspace, rep progress.Reporter) (err error) {
	r := &run{ws: ws, fs: ws.FS(), rep: rep}
	if err := r.openPlan(); err != nil || r.gen.ID == 0 {
		return err
	}
	r.dir = ws.GenerationDir(r.gen)
	if r.idx, err = r.findPlan(); err != nil {
		return err
	}
	return errors.Join(r.copyPlan(ctx), r.close())
}

// Reseal makes anew what seals a generation: lease, plan, index, head and
// manifest, all of which follow from the ledger, the plan and the model. Blobs
// are not touched, and the files become what they were. head is nil where the
// model has no weights; model is its fingerprint.
func Reseal(ctx context.Context, ws *store.Workspace, g store.GenerationRow, head *model.Head, model string, rep progress.Reporter) (err error) {
	r := &run{ws: ws, fs: ws.FS(), rep: rep, gen: g, dir: ws.GenerationDir(g), o: Options{Head: head}}
	var blobs []store.BlobRow
	var absent []store.QuarantineRow
	err = ws.View(func(rd store.Reader) error {
		var ok bool
		var e1, e2, e3 error
		r.plan, ok, e1 = rd.PlanByID(g.Plan)
		if e1 == nil && !ok {
			e1 = fmt.Errorf("the ledger has no plan %d", g.Plan)
		}
		blobs, e2 = rd.Blobs(g.ID)
		absent, e3 = rd.Quarantine(g.ID)
		return errors.Join(e1, e2, e3)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if r.idx, err = r.findPlan(); err != nil {
		return err
	}
	r.measure()
	r.meta = r.blobsMeta()
	if err := r.mayReseal(ctx, model); err != nil {
		return err
	}
	if err := r.fs.MkdirAll(r.dir); err != nil {
		return err
	}
	if err := errors.Join(genindex.CreateLease(r.fs, r.dir), r.copyPlan(ctx)); err != nil {
		return err
	}
	_, err = r.writeSeal(ctx, blobs, absent)
	return err
}

// mayReseal refuses where the files would not become what they were: the model
// is another now, or its head cannot be told to be the one that was written.
func (r *run) mayReseal(ctx context.Context, model string) error {
	path := filepath.Join(r.dir, headName)
	if model != r.meta.Model {
		return &store.CorruptError{Path: r.dir, Offset: -1, Err: errors.New("cannot be sealed anew: it was made with another model"),
			Hint: "restore what is damaged in " + r.dir + " from a copy, or configure the model that it was made with"}
	}
	if _, err := os.Stat(path); r.o.Head != nil || r.meta.Synthetic || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	hash, err := blob.HashFile(ctx, path)
	if err != nil {
		return err
	}
	m, _, err := genindex.ReadManifest(r.dir)
	if err == nil {
		for _, f := range m.Files {
			if f.Name == headName && f.Hash == hash {
				return nil
			}
		}
		err = errors.New("is not what was sealed")
	}
	return &store.CorruptError{Path: path, Offset: -1, Err: err,
		Hint: "restore " + path + " from a copy, or put the model's weights back, from which it is made"}
}
