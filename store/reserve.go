package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

const (
	reserveName    = "reserve.bin"
	defaultReserve = 64 << 20
)

// existing returns path or the nearest directory above it that is there.
func existing(path string) string {
	for {
		if _, err := os.Lstat(path); err == nil {
			return path
		}
		up := filepath.Dir(path)
		if up == path {
			return path
		}
		path = up
	}
}

// CheckSpace fails with *SpaceError when writing need more bytes under path
// would leave less than keep free. path need not exist yet.
func CheckSpace(path string, need, keep int64) error {
	sp, err := fsx.SpaceAt(existing(path))
	if err != nil {
		return err
	}
	if sp.Free-keep < need {
		return &SpaceError{Path: path, Free: sp.Free, Need: need, Keep: keep}
	}
	return nil
}

func (w *Workspace) reservePath() string { return filepath.Join(w.dir, reserveName) }

// reserveSize is how large reserve.bin is to be.
func (w *Workspace) reserveSize() (int64, error) {
	if w.opt.Reserve > 0 {
		return w.opt.Reserve, nil
	}
	sp, err := fsx.SpaceAt(w.dir)
	return min(defaultReserve, sp.Total/100), err
}

// ReleaseReserve removes reserve.bin, if it is there, so that gc and the
// ledger can work on a full disk.
func (w *Workspace) ReleaseReserve() error {
	w.reserve.Lock()
	defer w.reserve.Unlock()
	if _, err := os.Lstat(w.reservePath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := w.opt.FS.Point(fault.ReserveBeforeUnlink); err != nil {
		return err
	}
	if err := w.opt.FS.Remove(w.reservePath()); err != nil {
		return err
	}
	return w.opt.FS.SyncDir(w.dir)
}

// RestoreReserve makes reserve.bin again. It fails with *SpaceError where less
// than its size would then be free.
func (w *Workspace) RestoreReserve() error {
	w.reserve.Lock()
	defer w.reserve.Unlock()
	size, err := w.reserveSize()
	if err != nil {
		return err
	}
	if st, err := os.Lstat(w.reservePath()); size == 0 || err == nil && st.Size() >= size {
		return nil
	}
	if err := CheckSpace(w.dir, size, size); err != nil {
		return err
	}
	f, err := w.opt.FS.Create(w.reservePath() + fsx.TempSuffix)
	if err != nil {
		return err
	}
	if err := allocate(f, size); err != nil {
		return asSpace(f.Name(), size, errors.Join(err, f.Close(), w.opt.FS.Remove(f.Name())))
	}
	if err := w.opt.FS.Publish(f, w.reservePath()); err != nil {
		rerr := w.opt.FS.Remove(f.Name())
		if errors.Is(rerr, fs.ErrNotExist) {
			rerr = nil
		}
		return errors.Join(err, rerr)
	}
	return nil
}

// allocate gives f size bytes of disk.
func allocate(f *fsx.File, size int64) error {
	err := fallocate(f.OS(), 0, size)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return &fsx.PathError{Op: "fallocate", Path: f.Name(), Err: err}
	}
	zeros := make([]byte, 1<<20)
	for n := int64(0); n < size; n += int64(len(zeros)) {
		if _, err := f.Write(zeros[:min(int64(len(zeros)), size-n)]); err != nil {
			return err
		}
	}
	return nil
}
