package store

import (
	"context"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// CheckLedger reads checkpoints.jsonl and manifest.db anew, in full, and fails
// with *CorruptError where one is damaged or they do not say the same.
func (w *Workspace) CheckLedger(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	h, err := readLog(w.dir)
	if err != nil {
		return err
	}
	if h.seq != w.Seq() || h.end != h.size {
		return &CorruptError{Path: w.log.Name(), Offset: h.end, Hint: hintRebuildLog,
			Err: fmt.Errorf("whole lines end at step %d, the ledger is at step %d", h.seq, w.Seq())}
	}
	at, err := boltSeq(w.db)
	if err != nil {
		return err
	}
	if at != h.seq {
		return manifestDamage(w.db.Path(), "", fmt.Errorf("at step %d, checkpoints.jsonl is at step %d", at, h.seq))
	}
	// First, since it stops at a page that would make bbolt's own check panic.
	if err := compare(w.db, h.state); err != nil {
		return err
	}
	return checkBolt(ctx, w.db)
}

// checkBolt runs bbolt's check of its pages.
func checkBolt(ctx context.Context, db *bolt.DB) error {
	if _, err := readBolt(db); err != nil {
		return err
	}
	var errs []error
	err := db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() { // to the end, or its goroutine stays
			if len(errs) < 10 {
				errs = append(errs, err)
			}
		}
		return ctx.Err()
	})
	if len(errs) > 0 {
		return manifestDamage(db.Path(), "", errors.Join(errs...))
	}
	return err
}
