package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

// LowRoom is the free space, in bytes, below which a change of the ledger
// gives up the reserve first: the last states of a run that filled the disk
// are to be recorded too.
const LowRoom = 4 << 20

// View reads the ledger. The Reader is valid until fn returns.
func (w *Workspace) View(fn func(Reader) error) error {
	return w.db.View(func(tx *bolt.Tx) error {
		return fn(rows{boltTable{tx, manifestPath(w.dir)}})
	})
}

// Seq returns the number of the last change.
func (w *Workspace) Seq() uint64 { return w.seq.Load() }

// Update changes the ledger: what fn puts becomes durable in one step, or,
// where fn fails, not at all. label names the change in errors and in the log.
// A change without a put is no step.
func (w *Workspace) Update(ctx context.Context, label string, fn func(*Tx) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return fmt.Errorf("%s: ledger closed by an earlier failure: %w", label, w.failed)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var ops []op
	err := w.View(func(r Reader) error {
		o := newOverlay(r.(rows).t)
		if err := fn(&Tx{Reader: rows{o}, o: o}); err != nil {
			return err
		}
		ops = o.ops
		return nil
	})
	if err != nil || len(ops) == 0 {
		return err
	}
	if err := w.commit(label, ops); err != nil {
		return fmt.Errorf("ledger: %s: %w", label, err)
	}
	return nil
}

// commit writes the line, then the transaction.
func (w *Workspace) commit(label string, ops []op) error {
	for _, o := range ops {
		if !utf8.ValidString(o.key) { // the log would hold another one
			return fmt.Errorf("the key %q of %s is no UTF-8", o.key, o.bucket)
		}
	}
	label = strings.ToValidUTF8(label, "\ufffd")
	if err := w.opt.FS.Point(fault.LedgerBeforeAppend); err != nil {
		return err
	}
	if sp, err := fsx.SpaceAt(w.dir); err == nil && sp.Free < LowRoom {
		if err := w.ReleaseReserve(); err != nil {
			return err
		}
	}
	if err := w.allocateAhead(); err != nil {
		return err
	}
	seq := w.seq.Load() + 1
	if err := w.append(appendStep(nil, step{seq: seq, at: time.Now(), label: label, ops: ops})); err != nil {
		return err
	}
	if err := w.opt.FS.Point(fault.LedgerAfterAppend); err != nil {
		return w.fail(err)
	}
	if err := applyBolt(w.opt.FS, w.db, seq, ops); err != nil {
		return w.fail(err)
	}
	w.seq.Store(seq)
	if err := w.opt.FS.Point(fault.LedgerAfterCommit); err != nil {
		return w.fail(err)
	}
	return w.fail(w.maybeCompact())
}

// append makes a line durable. A line for which there was no room is taken
// back, and the ledger goes on.
func (w *Workspace) append(line []byte) error {
	if _, err := w.log.Write(line); err != nil {
		w.logRoom = w.logSize // what lies beyond is given up with the cut
		if terr := w.log.Truncate(w.logSize); terr != nil {
			return w.fail(errors.Join(err, terr))
		}
		if isNoRoom(err) {
			return asSpace(w.log.Name(), int64(len(line)), err)
		}
		return w.fail(err)
	}
	if err := w.log.Sync(); err != nil {
		return w.fail(err)
	}
	w.logSize += int64(len(line))
	return nil
}

// fail makes err, if any, the answer to every later change.
func (w *Workspace) fail(err error) error {
	if err != nil && w.failed == nil {
		w.failed = err
	}
	return err
}
