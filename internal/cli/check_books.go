package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

// ledger opens the workspace, which compares log and manifest.db, unless a run
// holds it or nobody may write it.
func (k *checker) ledger(ctx context.Context) error {
	if k.snap.Live {
		k.rep.Note("pid %d holds the workspace: its ledger is not compared, its generations are", k.snap.Holder.PID)
		return nil
	}
	ws, err := store.Open(ctx, k.dir, store.Options{FS: k.fs, Command: "check"})
	if errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission) {
		k.rep.Note("%v: checkpoints.jsonl is sound, manifest.db is not compared with it", err)
		return nil
	}
	if err := k.found("manifest.db", err); err != nil || ws == nil {
		return err
	}
	return errors.Join(
		k.found("manifest.db", ws.CheckLedger(ctx)),
		k.found("orders", k.order(ws)),
		ws.Close())
}

// found notes what is damaged or missing, and returns what kept it from looking.
func (k *checker) found(name string, err error) error {
	if errors.Is(err, store.ErrCorrupt) {
		k.problem(filepath.Join(k.dir, name), err)
		return nil
	}
	return err
}

// order proves the order in force.
func (k *checker) order(ws *store.Workspace) error {
	row, ok, err := k.snap.Order()
	if err != nil || !ok {
		return err
	}
	o, err := ws.OpenOrder(row)
	if err != nil {
		return err
	}
	return errors.Join(o.Verify(), o.Close())
}

// samples looks at a samples generation, in full at every record; a running
// writer holds Badger, so then records are left out.
func (k *checker) samples(ctx context.Context, g store.GenerationRow, dir string) error {
	rows, err := k.snap.Datasets()
	if err != nil {
		return err
	}
	n := g.Samples
	if g.State == store.GenBuilding {
		for _, d := range rows {
			if d.SamplesGen == g.ID {
				n = max(n, d.FirstRow+d.Accepted)
			}
		}
		if n == 0 {
			return nil // begun, and nothing counts yet: there may be no file at all
		}
	}
	if g.State == store.GenBuilding {
		err = samples.CheckRows(dir, n)
	} else {
		err = samples.CheckSealed(dir, n)
	}
	if err == nil && k.opts.Full && !k.snap.Live {
		if err = samples.Verify(ctx, dir, n, samples.Options{FS: k.fs}); err == nil {
			k.doc.Samples += n
		}
	}
	k.rep.Add(progress.Delta{Units: g.Bytes})
	var c *samples.CorruptError
	switch {
	case errors.As(err, &c):
		k.problem(c.Path, err)
	case errors.Is(err, os.ErrNotExist):
		k.problem(dir, err)
	default:
		return err
	}
	return nil
}

func (k *checker) cursorPath() string { return filepath.Join(k.dir, "logs", "check.json") }

func (k *checker) loadCursor() error {
	b, err := fsx.ReadFile(k.cursorPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(b, &k.cursor)
	}
	if err != nil {
		return withHint(fmt.Errorf("the cursor of the last check: %w", err), "check without --resume")
	}
	return nil
}

func (k *checker) saveCursor() error {
	if !k.everything() {
		return nil
	}
	if err := k.fs.MkdirAll(filepath.Dir(k.cursorPath())); err != nil {
		return err
	}
	return k.fs.WriteFileAtomic(k.cursorPath(), func(w io.Writer) error { return json.NewEncoder(w).Encode(k.cursor) })
}

// saveNowAndThen saves the cursor, so that not even a kill costs more than a
// second and the file under way. That it cannot be saved only costs time later.
func (k *checker) saveNowAndThen() {
	if time.Since(k.saved) < time.Second {
		return
	}
	if err := k.saveCursor(); err != nil {
		k.rep.Note("the cursor for --resume is not saved: %v", err)
	}
	k.saved = time.Now()
}

// everything says that this check is one that another can resume.
func (k *checker) everything() bool {
	return k.doc.Full && !k.c.IsSet("sample") && !k.c.Args().Present()
}

func (k *checker) dropCursor() error {
	if !k.everything() {
		return nil
	}
	if _, err := os.Lstat(k.cursorPath()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := k.fs.Remove(k.cursorPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
