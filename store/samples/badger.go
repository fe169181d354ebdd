package samples

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"eaglebatch/internal/fsx"
)

const (
	dbName = "db"
	// batchBytes bounds a Badger batch. Badger counts neither the values of a
	// batch against its memory nor against its 4 GiB request limit.
	batchBytes   = 8 << 20
	valueLogFile = 512 << 20
	// valueThreshold is the size from which a record lies in the value log. Tables
	// are never compacted and each takes an open file, and each read looks at all of
	// them: with little but keys in them a million samples make eight, not seventy.
	valueThreshold = 64
	numMemtables   = 3
	minMemtable    = 4 << 20
	maxMemtable    = 64 << 20
	// closeGrace is how long a poisoned database that is only read may take to
	// close.
	closeGrace = 5 * time.Second
)

// memtable sizes the memtables so that all of them (the active one and those
// waiting for their flush, each with the slack that Badger adds), the table
// that is built of one, which takes six times its size, and a batch fit into
// mem.
func memtable(mem int64) int64 {
	return min(max(mem/16, minMemtable), maxMemtable)
}

// spaceNeed bounds what the next batch of n bytes may take on disk: the value
// log, the write-ahead log, and flushes and compactions that it sets off.
func spaceNeed(n, mem int64) int64 { return 4*n + 4*memtable(mem) }

// ErrAbandoned: Badger failed to write, and what it was at is frozen for the
// life of the process. Only another process can open the database.
var ErrAbandoned = errors.New("the database is out of use in this process")

// poison is Badger's logger. Its first ERROR line is an error that Badger
// swallowed: the data may not be on disk although the call succeeded.
type poison struct {
	dir  string
	fail func(error)
	once sync.Once
	ch   chan struct{} // closed once err is set
	err  error
	hold atomic.Bool // keep who reports an error from going on
}

func newPoison(dir string, fail func(error)) *poison {
	return &poison{dir: dir, fail: fail, ch: make(chan struct{})}
}

// Errorf implements badger.Logger. While writing it never returns: Badger
// would try a failed flush again, and with it an fsync that then succeeds
// although what the first one was for is not on disk.
func (p *poison) Errorf(format string, args ...any) {
	p.set(fsx.Unflatten(fmt.Errorf("%s: badger: %s", p.dir, strings.TrimSpace(fmt.Sprintf(format, args...)))))
	if p.hold.Load() {
		select {}
	}
}

// set makes err the answer to every later call, unless there is one already.
// It returns the one that counts.
func (p *poison) set(err error) error {
	p.once.Do(func() {
		p.err = err
		if p.hold.Load() {
			p.err = fmt.Errorf("%w (%w)", err, ErrAbandoned)
		}
		close(p.ch)
		if p.fail != nil {
			p.fail(p.err)
		}
	})
	return p.err
}

// Warningf implements badger.Logger.
func (p *poison) Warningf(string, ...any) {}

// Infof implements badger.Logger.
func (p *poison) Infof(string, ...any) {}

// Debugf implements badger.Logger.
func (p *poison) Debugf(string, ...any) {}

// check returns the swallowed error, nil while there is none.
func (p *poison) check() error {
	select {
	case <-p.ch:
		return p.err
	default:
		return nil
	}
}

// do runs fn, and stops waiting for it once the database is poisoned: a call
// into Badger may then never return. An error of fn poisons too.
func (p *poison) do(ctx context.Context, fn func() error) error {
	if err := errors.Join(p.check(), ctx.Err()); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		if err != nil {
			return p.set(fsx.Unflatten(fmt.Errorf("%s: %w", p.dir, err)))
		}
		return p.check()
	case <-p.ch:
		return p.err
	}
}

// closeDB closes db, giving up on it where it is poisoned: closing a database
// that is written flushes what it holds.
func (p *poison) closeDB(db *badger.DB) error {
	if err := p.check(); err != nil && p.hold.Load() {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- db.Close() }()
	select {
	case err := <-done:
		return errors.Join(p.check(), fsx.Unflatten(err))
	case <-p.ch:
	}
	if p.hold.Load() {
		return p.err
	}
	select {
	case err := <-done:
		return errors.Join(p.err, err)
	case <-time.After(closeGrace):
		return p.err
	}
}

func badgerOptions(dir string, mem int64, log badger.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithValueThreshold(valueThreshold).
		WithSyncWrites(true).
		// Records are packed already, and without compression Badger needs no
		// block cache; the tree holds keys and pointers only.
		WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0).
		WithDetectConflicts(false).WithNumVersionsToKeep(1).WithMetricsEnabled(false).
		WithMemTableSize(memtable(mem)).WithNumMemtables(numMemtables).
		// No compaction: keys come in their order and once, so that there is
		// nothing to gain, and Badger (4.9) drops the error of a table that it
		// could not write while compacting, then deletes the tables it came from.
		WithNumCompactors(0).WithCompactL0OnClose(false).WithNumLevelZeroTablesStall(math.MaxInt32).
		WithValueLogFileSize(valueLogFile).
		WithVerifyValueChecksum(true).
		WithLogger(log)
}

// isLocked reports that another database handle holds the directory.
func isLocked(err error) bool { return strings.Contains(err.Error(), "directory lock") }

// isDiskFault reports that the system refused, and not that a file is missing
// or holds what it should not.
func isDiskFault(err error) bool {
	var sys syscall.Errno
	return errors.As(err, &sys) && sys != syscall.ENOENT
}

// openError makes of Badger's reason not to open a database what it is: the
// system's, or damage.
func openError(dir string, err error) error {
	if err = fsx.Unflatten(err); isDiskFault(err) || isLocked(err) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return &CorruptError{Path: dir, Err: err}
}

// unreadable makes of an error that a database logged while it was only read
// what it is: what was to be read is damaged, or the disk failed.
func unreadable(dir string, err error) error {
	if err = fsx.Unflatten(err); isDiskFault(err) {
		return err
	}
	return &CorruptError{Path: dir, Err: err}
}

// openReadOnly opens the database in dir for reading. After a killed writer
// Badger refuses that until it has been opened for writing once, which
// replays its logs; a sealed one had been closed.
func openReadOnly(dir string, o Options, sealed bool) (*badger.DB, *poison, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, &CorruptError{Path: dir, Err: err}
	}
	if err := checkTables(dir); err != nil {
		return nil, nil, err
	}
	open := func(ro bool) (*badger.DB, *poison, error) {
		p := newPoison(dir, nil)
		db, err := badger.Open(badgerOptions(dir, o.memory(), p).WithReadOnly(ro))
		if err == nil && o.Fail != nil {
			p.fail = func(err error) { o.Fail(unreadable(dir, err)) }
		}
		return db, p, err
	}
	db, p, err := open(true)
	if err == nil {
		return db, p, nil
	}
	switch err = fsx.Unflatten(err); {
	case isLocked(err):
		return nil, nil, fmt.Errorf("%s: is being written by another process: %w", dir, err)
	case isDiskFault(err), sealed:
		return nil, nil, openError(dir, err)
	}
	if err := o.guard(spaceNeed(0, o.memory())); err != nil {
		return nil, nil, err
	}
	if err := mendManifest(o.FS, dir); err != nil {
		return nil, nil, err
	}
	db, p, err = open(false)
	if err != nil {
		return nil, nil, openError(dir, err)
	}
	p.hold.Store(true)
	if err := p.closeDB(db); err != nil {
		return nil, nil, err
	}
	db, p, err = open(true)
	if err != nil {
		return nil, nil, openError(dir, err)
	}
	return db, p, nil
}
