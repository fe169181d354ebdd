package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"eaglebatch/internal/fsx"
)

// initRoom is what an empty workspace takes, in bytes.
const initRoom = 64 << 10

// DefaultMemory bounds Badger and caches where Options.Memory is 0, in bytes.
const DefaultMemory = 512 << 20

// Options opens a workspace.
type Options struct {
	FS      *fsx.FS
	Memory  int64  // bound for Badger and caches, bytes; 0: DefaultMemory
	Command string // what is running, for run.lock
	Reserve int64  // size of reserve.bin, bytes; 0: 64 MiB, or 1% of a small volume
}

// Workspace is an open workspace: the writer, holding run.lock. Whoever opens
// it closes it. Safe for concurrent use.
type Workspace struct {
	dir    string
	opt    Options
	marker marker
	lock   *lockFile
	db     *bolt.DB

	mu        sync.Mutex // serialises changes
	log       *fsx.File
	logSize   int64 // bytes of whole lines
	compactAt int64 // size of the log at which compaction is considered
	logRoom   int64 // bytes that have their blocks, of the log
	dbRoom    int64 // … of manifest.db
	seq       atomic.Uint64
	failed    error // the first failure that leaves the disk's state unknown
	closed    bool

	reserve sync.Mutex // serialises changes of reserve.bin
}

var _ io.Closer = (*Workspace)(nil)

// Init makes a workspace in dir if there is none, and opens it.
func Init(ctx context.Context, dir string, o Options) (*Workspace, error) {
	if _, err := readMarker(dir); !errors.Is(err, ErrNoWorkspace) {
		if err != nil {
			return nil, err
		}
		return Open(ctx, dir, o)
	}
	if err := create(ctx, dir, o); err != nil {
		return nil, asSpace(dir, initRoom, err)
	}
	return Open(ctx, dir, o)
}

// create lays down an empty workspace. The marker comes last: until it is
// there, nothing else counts and is made anew by the next attempt.
func create(ctx context.Context, dir string, o Options) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.FS.MkdirAll(dir); err != nil {
		return err
	}
	lock, err := acquire(o.FS, dir, o.Command)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if _, err := readMarker(dir); !errors.Is(err, ErrNoWorkspace) {
		return err // another process was faster
	}
	m := marker{RootID: newRootID(), Format: Format}
	first := step{seq: 1, at: time.Now(), label: "init", ops: []op{{bucket: bucketMeta, key: keyRoot, value: []byte(m.RootID)}}}
	err = o.FS.WriteFileAtomic(filepath.Join(dir, logName), func(w io.Writer) error {
		_, err := w.Write(appendStep(nil, first))
		return err
	})
	if err != nil {
		return err
	}
	if err := rebuildManifest(o.FS, dir); err != nil {
		return err
	}
	return writeMarker(o.FS, dir, m)
}

// Open opens an existing workspace for writing. On a full disk it gives up the
// reserve rather than fail.
func Open(ctx context.Context, dir string, o Options) (*Workspace, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	m, err := readMarker(dir)
	if err != nil {
		return nil, err
	}
	w := &Workspace{dir: dir, opt: o, marker: m}
	err = w.open()
	if isNoRoom(err) {
		if err := w.ReleaseReserve(); err != nil {
			return nil, err
		}
		err = w.open()
	}
	if err != nil {
		return nil, asSpace(dir, initRoom, err)
	}
	if err := w.allocateAhead(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := w.RestoreReserve(); err != nil && !isNoRoom(err) {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// open takes the lock and brings log and manifest together.
func (w *Workspace) open() (err error) {
	w.lock, err = acquire(w.opt.FS, w.dir, w.opt.Command)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.shut())
		}
	}()
	if err := w.sweep(); err != nil {
		return err
	}
	h, err := readLog(w.dir)
	if err != nil {
		return err
	}
	if err := checkPlain(manifestPath(w.dir)); errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsx.ErrNotRegular) {
		return manifestDamage(manifestPath(w.dir), "", err)
	} else if err != nil {
		return err
	}
	if w.db, err = openBolt(manifestPath(w.dir)); err != nil {
		return err
	}
	if err := w.reconcile(h); err != nil {
		return err
	}
	w.log, err = w.opt.FS.OpenFile(filepath.Join(w.dir, logName), os.O_RDWR|os.O_APPEND)
	if err != nil {
		return err
	}
	if h.end < h.size {
		if err := cut(w.log, h.end); err != nil {
			return err
		}
	}
	w.logSize, w.compactAt = h.end, compactMin
	w.seq.Store(h.seq)
	return w.maybeCompact()
}

// checkPlain fails where path is no regular file: bbolt would open a named pipe.
func checkPlain(path string) error {
	f, err := fsx.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// reconcile carries the step over that a crash kept from manifest.db, and
// proves that both then say the same.
func (w *Workspace) reconcile(h history) error {
	logPath := filepath.Join(w.dir, logName)
	if err := checkRoot(logPath, h.state, w.marker); err != nil {
		return err
	}
	at, err := boltSeq(w.db)
	if err != nil {
		return err
	}
	switch {
	case at == h.seq:
	case at+1 == h.seq && !h.last.base:
		// The writer may have died between its write and its fsync: the line is
		// then read from the page cache, and manifest.db must not be durable
		// before it.
		if err := w.syncLog(); err != nil {
			return err
		}
		if err := applyBolt(w.opt.FS, w.db, h.seq, h.last.ops); err != nil {
			return err
		}
	case at < h.seq:
		return manifestDamage(w.db.Path(), "", fmt.Errorf("at step %d, checkpoints.jsonl is at step %d", at, h.seq))
	default:
		return &CorruptError{Path: logPath, Offset: h.end, Hint: hintRebuildLog,
			Err: fmt.Errorf("whole lines end at step %d, but manifest.db is at step %d", h.seq, at)}
	}
	return compare(w.db, h.state)
}

// syncLog makes durable what the log of an earlier writer holds.
func (w *Workspace) syncLog() error {
	f, err := w.opt.FS.OpenFile(filepath.Join(w.dir, logName), os.O_RDWR)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// sweep removes what a crash left of our own files that never got their name.
// In the workspace's root, which others may use too, it knows them by name.
func (w *Workspace) sweep() error {
	for _, n := range []string{logName, manifestName, statusName, markerName, reserveName} {
		err := w.opt.FS.Remove(filepath.Join(w.dir, n+fsx.TempSuffix))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, d := range []string{plansDir, ordersDir} {
		if _, err := w.opt.FS.SweepTemp(filepath.Join(w.dir, d)); err != nil {
			return err
		}
	}
	return nil
}

// Close gives the workspace back. A second Close does nothing.
func (w *Workspace) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	if w.failed == nil {
		w.failed = fs.ErrClosed
	}
	return w.shut()
}

// shut closes what is open; the lock last.
func (w *Workspace) shut() error {
	var errs []error
	if w.log != nil {
		errs = append(errs, w.log.Close())
	}
	if w.db != nil {
		errs = append(errs, closeBolt(w.db, closeBoltGrace))
	}
	errs = append(errs, w.lock.release())
	w.log = nil // db stays: closed, it answers every View with an error
	return errors.Join(errs...)
}
