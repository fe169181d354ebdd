package samples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

const (
	dbName = "db"
	// batchBytes bounds a Badger batch. Badger counts neither the values of a
	// batch against its memory nor against its 4 GiB request limit.
	batchBytes   = 8 << 20
	valueLogFile = 512 << 20
	numMemtables = 3
	minMemtable  = 4 << 20
	maxMemtable  = 64 << 20
	// closeGrace is how long a poisoned database may take to close. Badger
	// retries a failed flush for ever.
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

// poison is Badger's logger. Its first ERROR line is an error that Badger
// swallowed: the data may not be on disk although the call succeeded.
type poison struct {
	dir  string
	fail func(error)
	once sync.Once
	ch   chan struct{} // closed once err is set
	err  error
}

func newPoison(dir string, fail func(error)) *poison {
	return &poison{dir: dir, fail: fail, ch: make(chan struct{})}
}

// Errorf implements badger.Logger.
func (p *poison) Errorf(format string, args ...any) {
	p.once.Do(func() {
		p.err = fmt.Errorf("%s: badger: %s", p.dir, strings.TrimSpace(fmt.Sprintf(format, args...)))
		close(p.ch)
		if p.fail != nil {
			p.fail(p.err)
		}
	})
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
// into Badger may then never return.
func (p *poison) do(ctx context.Context, fn func() error) error {
	if err := errors.Join(p.check(), ctx.Err()); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	select {
	case err := <-done:
		return errors.Join(p.check(), err)
	case <-p.ch:
		return p.err
	}
}

// closeDB closes db, giving up on it where it is poisoned.
func (p *poison) closeDB(db *badger.DB) error {
	done := make(chan error, 1)
	go func() { done <- db.Close() }()
	select {
	case err := <-done:
		return errors.Join(p.check(), err)
	case <-p.ch:
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
		WithValueThreshold(1 << 10).
		WithSyncWrites(true).
		// Records are packed already, and without compression Badger needs no
		// block cache; the tree holds keys, pointers and small records only.
		WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0).
		WithDetectConflicts(false).WithNumVersionsToKeep(1).WithMetricsEnabled(false).
		WithMemTableSize(memtable(mem)).WithNumMemtables(numMemtables).WithNumCompactors(2).
		WithValueLogFileSize(valueLogFile).
		WithVerifyValueChecksum(true).WithCompactL0OnClose(true).
		WithLogger(log)
}

// openReadOnly opens the database in dir for reading. After a killed writer
// Badger refuses that until it has been opened for writing once, which
// replays its logs.
func openReadOnly(dir string, o Options) (*badger.DB, *poison, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, &CorruptError{Path: dir, Err: err}
	}
	open := func(ro bool) (*badger.DB, *poison, error) {
		p := newPoison(dir, nil)
		db, err := badger.Open(badgerOptions(dir, o.memory(), p).WithReadOnly(ro))
		if err == nil {
			p.fail = o.Fail
		}
		return db, p, err
	}
	db, p, err := open(true)
	if err == nil {
		return db, p, nil
	}
	if strings.Contains(err.Error(), "directory lock") {
		return nil, nil, fmt.Errorf("%s: is being written by another process: %w", dir, err)
	}
	if err := o.guard(spaceNeed(0, o.memory())); err != nil {
		return nil, nil, err
	}
	db, p, err = open(false)
	if err != nil {
		return nil, nil, &CorruptError{Path: dir, Err: err}
	}
	if err := p.closeDB(db); err != nil {
		return nil, nil, err
	}
	db, p, err = open(true)
	if err != nil {
		return nil, nil, &CorruptError{Path: dir, Err: err}
	}
	return db, p, nil
}
