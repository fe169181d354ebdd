package gc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// unlink deletes a generation that lies in the trash. First its path goes from
// the ledger: from then on it cannot be restored, so that nothing half
// unlinked ever comes back.
func (x *executor) unlink(g store.GenerationRow) (err error) {
	dir, name, err := x.site.trashDir(g)
	if errors.Is(err, os.ErrNotExist) {
		return x.gone(g, nil)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	top, err := openBelow(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return x.gone(g, dir)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	_, ino, err := inode(top)
	if err != nil {
		return err
	}
	if a := g.Adopted; g.Origin == retain.Adopted && (a == nil || a.Inode != ino) {
		return fmt.Errorf("%w: %s is another directory than the one that was adopted", ErrRefused, top.Name())
	}
	if g.Path != "" {
		g.Path = ""
		if err := x.ws.Update(x.ctx, "unlink", func(tx *store.Tx) error { return tx.PutGeneration(g) }); err != nil {
			return err
		}
	}
	if err := x.watch(top); err != nil {
		return err
	}
	if err := x.empty(top, 0); err != nil {
		return err
	}
	if err := x.remove(dir, name, unix.AT_REMOVEDIR); err != nil {
		return err
	}
	if err := x.fs.SyncDir(dir.Name()); err != nil {
		return err
	}
	if err := x.fs.Point(fault.GCAfterUnlink); err != nil {
		return err
	}
	return x.gone(g, dir)
}

// gone records that nothing is left. An empty trash directory beside an
// adopted one goes too.
func (x *executor) gone(g store.GenerationRow, dir *os.File) error {
	if dir != nil && filepath.IsAbs(g.Trash) {
		x.fs.Note(fsx.OpRemove, dir.Name(), 0)
		if err := unix.Rmdir(dir.Name()); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "rmdir", Path: dir.Name(), Err: err}
		}
	}
	g.State, g.Changed = store.GenRetired, x.o.now()
	g.Path, g.Trash, g.Bytes, g.Needs = "", "", 0, nil
	return x.ws.Update(x.ctx, "unlinked", func(tx *store.Tx) error {
		// The books of the plan in force count the blobs that it once had.
		plan, _, err := tx.Plan()
		if err == nil && plan.Generation != g.ID {
			err = tx.DeleteBlobs(g.ID)
		}
		return errors.Join(err, tx.ForgetDamaged(g.ID, nil), tx.PutGeneration(g))
	})
}

// empty unlinks everything below an open directory, a batch of names at a
// time. Reading a directory while it shrinks may skip names, so it is read
// until a pass finds none.
func (x *executor) empty(d *os.File, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: %s is nested more than %d deep", ErrRefused, d.Name(), maxDepth)
	}
	for {
		n, err := x.emptyPass(d, depth)
		if err != nil || n == 0 {
			return err
		}
		if _, err := d.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

func (x *executor) emptyPass(d *os.File, depth int) (n int, err error) {
	for {
		ents, err := d.ReadDir(readBatch)
		for _, e := range ents {
			if x.ctx.Err() != nil {
				return n, context.Cause(x.ctx)
			}
			if err := x.entry(d, e.Name(), depth); err != nil {
				return n, err
			}
			n++
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (x *executor) entry(d *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %s: %w", filepath.Join(d.Name(), name), err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		sub, err := openBelow(d, name)
		if err != nil {
			return err
		}
		if err := errors.Join(x.empty(sub, depth+1), sub.Close()); err != nil {
			return err
		}
		return x.remove(d, name, unix.AT_REMOVEDIR)
	}
	if err := x.fs.Point(fault.GCBeforeUnlink); err != nil {
		return err
	}
	if err := x.remove(d, name, 0); err != nil {
		return err
	}
	x.rep.Add(progress.Delta{Units: 1, Bytes: st.Blocks * 512})
	return nil
}

// remove unlinks one name. Sealed directories may be read-only, which binds
// their owner too.
func (x *executor) remove(d *os.File, name string, flags int) error {
	x.fs.Note(fsx.OpRemove, filepath.Join(d.Name(), name), 0)
	err := unix.Unlinkat(int(d.Fd()), name, flags)
	if errors.Is(err, unix.EACCES) && unix.Fchmod(int(d.Fd()), 0o700) == nil {
		err = unix.Unlinkat(int(d.Fd()), name, flags)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unlink", Path: filepath.Join(d.Name(), name), Err: err}
	}
	return nil
}
