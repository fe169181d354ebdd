package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/states"
)

// missingDir reports whether the directory of generation g is not there, which
// is one problem, however many files it had.
func (k *checker) missingDir(g store.GenerationRow, dir string, known []store.DamagedEntry) (bool, error) {
	st, err := os.Stat(dir)
	if err == nil && st.IsDir() || err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return false, nil // whatever else is wrong with it shows at its files
	}
	blobs, err := k.snap.Blobs(g.ID)
	if err != nil {
		return false, err
	}
	if g.State == store.GenBuilding && len(blobs) == 0 {
		return true, nil // begun: it is not made yet
	}
	var bytes int64
	var found []store.DamagedEntry
	for _, b := range blobs {
		bytes += b.Bytes
		d := store.DamagedEntry{Blob: b.No, Whole: true}
		if !slices.Contains(known, d) {
			found = append(found, d)
		}
	}
	p := states.Problem{Generation: g.ID, Path: dir, Offset: -1, Blob: -1, Entry: -1, Layer: -1,
		Error: fmt.Sprintf("the directory is missing, and with it %s (%s)", human.Plural(int64(len(blobs)), "blob"), human.Bytes(bytes)),
		Hint:  "put " + dir + " back from a copy; without one, " + hintRepair + "computes its samples anew, into a new generation"}
	if len(blobs) == 0 {
		p.Error = "the directory is missing"
		p.Hint = hintRepair + "makes it anew from ledger, plan and model"
	}
	if len(blobs) > 0 && len(found) == 0 {
		k.doc.Known = append(k.doc.Known, p)
		return true, nil
	}
	k.doc.Problems = append(k.doc.Problems, p)
	k.lost = append(k.lost, g.ID)
	if len(found) > 0 {
		k.damaged[g.ID] = found
	}
	return true, nil
}

// noteMended notes a blob that was looked at in full and is sound although
// damage of it is on record: somebody put it back.
func (k *checker) noteMended(g store.GenerationRow, name string, known []store.DamagedEntry) {
	if !k.opts.Full {
		return
	}
	for _, d := range known {
		if blob.FileName(d.Blob) == name && !slices.Contains(k.mended[g.ID], d.Blob) {
			k.mended[g.ID] = append(k.mended[g.ID], d.Blob)
		}
	}
}

// forgetMended takes damage off the record of blobs that are sound again, so
// that plans point to them once more and new damage of them is reported.
func (k *checker) forgetMended(ctx context.Context) (err error) {
	if len(k.mended) == 0 {
		return nil
	}
	ws, err := store.Open(ctx, k.dir, store.Options{FS: k.fs, Command: "check"})
	if errors.Is(err, store.ErrInUse) || errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		k.rep.Note("blobs that were damaged are sound again, which cannot be recorded now: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ws.Close()) }()
	return ws.Update(ctx, "damage mended", func(tx *store.Tx) error {
		for gen, nos := range k.mended {
			k.rep.Note("generation %d: %s recorded as damaged, sound again", gen, human.Plural(int64(len(nos)), "blob"))
			if err := tx.ForgetDamaged(gen, func(d store.DamagedEntry) bool { return slices.Contains(nos, d.Blob) }); err != nil {
				return err
			}
		}
		return nil
	})
}
