// Package fsx is the only way the program changes files. Each operation is
// labelled in its error, can be recorded (so that a test asserts the order
// write, fsync, rename, fsync of the directory), and passes the fault points
// of the FS it belongs to.
//
// # Crash safety
//
// WriteFileAtomic and Publish leave either the old file or the complete new
// one under the final name. A failed fsync, close or rename is returned once
// and never retried: after a failed fsync Linux marks the pages clean, so a
// second fsync would succeed without the data being on disk. An FS sees to that
// itself: where an fsync of a file or directory failed, each later one fails
// with the same SyncError and asks nothing of the disk.
//
// # Concurrency
//
// An FS may be shared; its fields are not changed after its creation. A File
// belongs to one goroutine at a time, WriteAt apart.
package fsx

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"eaglebatch/internal/fault"
)

// TempSuffix ends the name of every file that is not complete yet.
const TempSuffix = ".tmp"

// Kind names an operation in a trace.
type Kind string

// The operations that a trace records.
const (
	OpCreate  Kind = "create"
	OpWrite   Kind = "write"
	OpSync    Kind = "fsync"
	OpClose   Kind = "close"
	OpRename  Kind = "rename"
	OpSyncDir Kind = "dirsync"
	OpRemove  Kind = "remove"
	OpMkdir   Kind = "mkdir"
	OpTrunc   Kind = "truncate"
	OpCommit  Kind = "commit" // a ledger commit, reported by store; N is the step
)

// Op is one recorded operation.
type Op struct {
	Kind Kind
	Path string
	N    int64 // bytes, for writes; the ledger's step, for commits
}

// FS carries the hooks of a run. The zero value and nil are the plain
// operating system.
type FS struct {
	Trace  func(Op)   // called before each operation, by many goroutines at once; may be nil
	Faults *fault.Set // may be nil

	mu    sync.Mutex
	syncs map[string]*syncState // of paths being synced, and of those where it failed
}

// Point passes the fault point p.
func (fs *FS) Point(p fault.Point) error {
	if fs == nil {
		return nil
	}
	return fs.Faults.Hit(p)
}

// Note records an operation done elsewhere, such as a ledger commit.
func (fs *FS) Note(k Kind, path string, n int64) {
	if fs != nil && fs.Trace != nil {
		fs.Trace(Op{Kind: k, Path: path, N: n})
	}
}

// File is an open file whose changes are recorded.
type File struct {
	fs *FS
	f  *os.File
}

// Create makes path anew, truncating what an earlier crash may have left.
func (fs *FS) Create(path string) (*File, error) {
	return fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

// OpenFile opens path with os flags and mode 0666 less the umask.
func (fs *FS) OpenFile(path string, flag int) (*File, error) {
	if flag&os.O_CREATE != 0 {
		fs.Note(OpCreate, path, 0)
	}
	f, err := os.OpenFile(path, flag, 0o666)
	if err != nil {
		return nil, err
	}
	return &File{fs: fs, f: f}, nil
}

// Write appends at the file's offset.
func (f *File) Write(p []byte) (int, error) {
	f.fs.Note(OpWrite, f.f.Name(), int64(len(p)))
	return f.f.Write(p)
}

// WriteAt writes at off.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	f.fs.Note(OpWrite, f.f.Name(), int64(len(p)))
	return f.f.WriteAt(p, off)
}

// ReadAt reads at off.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }

// Seek moves the offset.
func (f *File) Seek(off int64, whence int) (int64, error) { return f.f.Seek(off, whence) }

// Truncate cuts the file to n bytes.
func (f *File) Truncate(n int64) error {
	f.fs.Note(OpTrunc, f.f.Name(), n)
	return f.f.Truncate(n)
}

// Sync makes the file's bytes durable.
func (f *File) Sync() error {
	return f.fs.sync(OpSync, f.f.Name(), f.f.Sync)
}

// Close closes the file.
func (f *File) Close() error {
	f.fs.Note(OpClose, f.f.Name(), 0)
	return f.f.Close()
}

// Name returns the path the file was opened with.
func (f *File) Name() string { return f.f.Name() }

// OS returns the file underneath, for locks, mmap and advice; not for writes.
func (f *File) OS() *os.File { return f.f }

// Rename moves a complete file or directory to its final name and makes the
// move durable. Both names must lie on one filesystem.
func (fs *FS) Rename(from, to string) error {
	fs.Note(OpRename, to, 0)
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := fs.SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	if d := filepath.Dir(from); d != filepath.Dir(to) {
		return fs.SyncDir(d)
	}
	return nil
}

// SyncDir makes the names in dir durable.
func (fs *FS) SyncDir(dir string) error {
	return fs.sync(OpSyncDir, dir, func() error {
		d, err := os.Open(dir)
		if err != nil {
			return fmt.Errorf("sync directory: %w", err)
		}
		return errors.Join(d.Sync(), d.Close())
	})
}

// Publish syncs and closes f, then renames it from its temporary name to path.
func (fs *FS) Publish(f *File, path string) error {
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return fs.Rename(f.Name(), path)
}

// WriteFileAtomic writes path through a temporary file in the same directory.
// A failure leaves no temporary file behind (a crash may).
func (fs *FS) WriteFileAtomic(path string, write func(io.Writer) error) error {
	f, err := fs.Create(path + TempSuffix)
	if err != nil {
		return err
	}
	bw := bufio.NewWriterSize(f, 1<<18)
	err = write(bw)
	if err == nil {
		err = bw.Flush()
	}
	if err != nil {
		return errors.Join(err, f.Close(), fs.Remove(f.Name()))
	}
	if err := fs.Publish(f, path); err != nil {
		return errors.Join(err, fs.removeIfThere(f.Name()))
	}
	return nil
}

// MkdirAll makes dir and its parents, and makes each new name durable.
func (fs *FS) MkdirAll(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return fmt.Errorf("%s: is not a directory", dir)
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := fs.MkdirAll(parent); err != nil {
			return err
		}
	}
	fs.Note(OpMkdir, dir, 0)
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return fs.SyncDir(parent)
}

// Remove unlinks path.
func (fs *FS) Remove(path string) error {
	fs.Note(OpRemove, path, 0)
	return os.Remove(path)
}

func (fs *FS) removeIfThere(path string) error {
	if err := fs.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// SweepTemp removes the files in dir, not below it, that end in TempSuffix:
// what a crash left of files that never got their name.
func (fs *FS) SweepTemp(dir string) (int, error) {
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range ents {
		if e.Type().IsRegular() && strings.HasSuffix(e.Name(), TempSuffix) {
			if err := fs.Remove(filepath.Join(dir, e.Name())); err != nil {
				return n, err
			}
			n++
		}
	}
	if n > 0 {
		return n, fs.SyncDir(dir)
	}
	return 0, nil
}
