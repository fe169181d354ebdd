package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"eaglebatch/extract"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/states"
)

// plan opens the plan in force, which checks all of it, and the copy that the
// generation has of it while it is built.
func (k *checker) plan(context.Context) error {
	row, ok, err := k.snap.Plan()
	if err != nil || !ok {
		return err
	}
	path := filepath.Join(k.dir, "plans", fmt.Sprintf("%06d.ebi", row.ID))
	if err := openIndex(path); err != nil {
		k.problem(path, err)
	}
	g, ok, err := k.snap.Generation(row.Generation)
	if err != nil || !ok || g.State != store.GenBuilding {
		return err
	}
	if blobs, err := k.snap.Blobs(g.ID); err != nil || len(blobs) == 0 {
		return err
	}
	if _, err := os.Lstat(filepath.Join(k.dir, g.Path)); errors.Is(err, os.ErrNotExist) {
		return nil // which is a problem of its own
	}
	path = filepath.Join(k.dir, g.Path, states.PlanName)
	if err := openIndex(path); err != nil {
		k.problem(path, &store.CorruptError{Path: path, Offset: -1, Err: err, Hint: "'eaglebatch run' makes it anew from the plan in force"})
	}
	return nil
}

// openIndex opens an index, which checks every byte of it.
func openIndex(path string) error {
	f, err := genindex.OpenCommitted(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// rejects compares the files of rejected lines with what the merge wrote.
func (k *checker) rejects(ctx context.Context) error {
	rows, err := k.snap.Datasets()
	if err != nil {
		return err
	}
	for _, d := range rows {
		if d.RejectsHash == "" || d.RejectsBytes == 0 {
			continue // not complete yet, of an older version, or there are none
		}
		path := filepath.Join(k.dir, "rejects", d.Name+".jsonl")
		st, err := os.Stat(path)
		if err == nil && st.Size() != d.RejectsBytes {
			err = fmt.Errorf("has %d bytes, written were %d", st.Size(), d.RejectsBytes)
		}
		if err == nil && k.opts.Full {
			var hash string
			if hash, err = blob.HashFile(ctx, path); err == nil && hash != d.RejectsHash {
				err = fmt.Errorf("hash is %s, want %s", hash, d.RejectsHash)
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.problem(path, &store.CorruptError{Path: path, Offset: -1, Err: err,
				Hint: "restore " + path + " from a copy; without one, 'eaglebatch run --redo merge' makes it anew from the sources"})
		}
	}
	return nil
}

// files lists what a generation must have: as its manifest says, or, while it
// is building, as the ledger does. Ledger and manifest must agree.
func (k *checker) files(g store.GenerationRow, dir string) ([]genindex.ManifestFile, error) {
	blobs, err := k.snap.Blobs(g.ID)
	if err != nil {
		return nil, err
	}
	var out []genindex.ManifestFile
	for _, b := range blobs {
		out = append(out, genindex.ManifestFile{Name: blob.FileName(b.No), Bytes: b.Bytes, Hash: b.Hash})
	}
	if g.State == store.GenBuilding {
		return out, nil
	}
	m, _, err := genindex.ReadManifest(dir)
	if err != nil {
		k.badFile(g, filepath.Join(dir, states.ManifestName), err)
		return out, nil
	}
	for _, b := range out {
		if !slices.Contains(m.Files, b) {
			k.badFile(g, filepath.Join(dir, states.ManifestName), fmt.Errorf("does not name %s as the ledger has it", b.Name))
		}
	}
	if k.opts.Full {
		if err := openIndex(filepath.Join(dir, states.IndexName)); err != nil {
			k.badFile(g, filepath.Join(dir, states.IndexName), err)
		}
	}
	lease := filepath.Join(dir, genindex.LeaseName)
	if _, err := os.Stat(lease); err != nil {
		k.badFile(g, lease, fmt.Errorf("readers cannot keep gc away: %w", err))
	}
	return m.Files, nil
}

// stillThere looks at a generation that was sealed before, and at those that it
// points into, before it is called done: files and sizes, as check does.
func (j *job) stillThere(ctx context.Context, g store.GenerationRow) error {
	// Without its directory there is no place for the plan's copy.
	_, err := os.Lstat(j.ws.GenerationDir(g))
	if err == nil {
		err = extract.MendPlan(ctx, j.ws, j.rep)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	k := j.checker(j.c, j.ws.Dir())
	if k.snap, err = store.Inspect(j.ws.Dir()); err != nil {
		return err
	}
	for _, id := range append([]uint32{g.ID}, g.Needs...) {
		g, ok, err := k.snap.Generation(id)
		if err == nil && ok && g.State == store.GenSealed {
			err = k.generation(ctx, g)
		}
		if err != nil {
			return err
		}
	}
	for _, p := range k.doc.Problems {
		fmt.Fprintln(j.err, p)
	}
	return k.damage()
}
