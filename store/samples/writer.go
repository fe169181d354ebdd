package samples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

// Writer fills one generation. Not safe for concurrent use.
type Writer struct {
	dir    string
	o      Options
	db     *badger.DB
	poison *poison
	index  *fsx.File
	rows   int64 // durable
	err    error // the first failure; nothing works after it

	enc   *encoder
	keys  []byte // of the pending samples
	recs  []byte
	ends  []int // of each record in recs
	rowsB []byte
}

// OpenWriter opens dir (samples/NNNNNN), making it if need be, and truncates
// the row index to rows, the ledger's cursor. A sealed generation is refused.
func OpenWriter(dir string, rows int64, o Options) (*Writer, error) {
	if _, err := os.Stat(filepath.Join(dir, sealName)); err == nil {
		return nil, fmt.Errorf("%s: is sealed: nothing can be added to it", dir)
	}
	if err := o.FS.MkdirAll(dir); err != nil {
		return nil, err
	}
	if err := o.guard(spaceNeed(0, o.memory())); err != nil {
		return nil, err
	}
	index, err := openRowsWriter(o.FS, dir, rows)
	if err != nil {
		return nil, err
	}
	p := newPoison(dir, o.Fail)
	db, err := openForWriting(dir, rows, o, p)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", dir, err), index.Close())
	}
	return &Writer{dir: dir, o: o, db: db, poison: p, index: index, rows: rows, enc: newEncoder()}, nil
}

// openForWriting opens the database of the generation in dir. Where no row
// counts yet it begins anew: a crash may have left half of an empty one.
func openForWriting(dir string, rows int64, o Options, p *poison) (*badger.DB, error) {
	path := filepath.Join(dir, dbName)
	var err error
	if rows == 0 {
		err = emptyDir(o.FS, path)
	} else {
		err = errors.Join(mendManifest(o.FS, path), checkTables(path))
	}
	if err != nil {
		return nil, err
	}
	db, err := badger.Open(badgerOptions(path, o.memory(), p))
	if err != nil {
		if rows > 0 {
			return nil, openError(path, err)
		}
		return nil, fsx.Unflatten(err)
	}
	if err := o.FS.SyncDir(dir); err != nil {
		return nil, errors.Join(err, p.closeDB(db))
	}
	p.hold.Store(true)
	return db, nil
}

// emptyDir removes the files in dir, if there is such a directory.
func emptyDir(fsys *fsx.FS, dir string) error {
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || len(ents) == 0 {
		return err
	}
	for _, e := range ents {
		if err := fsys.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return fsys.SyncDir(dir)
}

// Rows returns the number of durable rows.
func (w *Writer) Rows() int64 { return w.rows }

// Pending returns the bytes that Add collected since the last Flush.
func (w *Writer) Pending() int64 { return int64(len(w.recs) + len(w.rowsB)) }

// Full says that a batch is complete: the caller should Flush.
func (w *Writer) Full() bool { return w.Pending() >= batchBytes }

// Add collects a sample and its row for the next Flush; s is not kept.
func (w *Writer) Add(s *Sample, r Row) error {
	if w.err != nil {
		return w.err
	}
	recs, err := w.enc.append(w.recs, s)
	if err != nil {
		return w.failed(err)
	}
	w.recs = recs
	w.rowsB = appendRow(w.rowsB, &r, w.rows+int64(len(w.ends)))
	w.ends = append(w.ends, len(recs))
	w.keys = appendKey(w.keys, s.Dataset, s.Index)
	return nil
}

// Append adds batch and makes it durable. Appending the same samples again
// after a crash gives the same bytes.
func (w *Writer) Append(ctx context.Context, batch []Sample) error {
	for i := range batch {
		if err := w.Add(&batch[i], MakeRow(&batch[i])); err != nil {
			return err
		}
		if w.Full() {
			if err := w.Flush(ctx); err != nil {
				return err
			}
		}
	}
	return w.Flush(ctx)
}

// Flush makes the collected samples durable: Badger first, with SyncWrites,
// then their rows, fsynced. The caller then moves the ledger's cursor.
func (w *Writer) Flush(ctx context.Context) error {
	if w.err != nil || len(w.ends) == 0 {
		return w.err
	}
	if err := w.flush(ctx); err != nil {
		return w.failed(err)
	}
	w.rows += int64(len(w.ends))
	w.keys, w.ends, w.rowsB = w.keys[:0], w.ends[:0], w.rowsB[:0]
	if cap(w.recs) > 4*batchBytes {
		w.recs = nil // one giant sample must not hold its memory for ever
	}
	w.recs = w.recs[:0]
	return nil
}

func (w *Writer) flush(ctx context.Context) error {
	if err := w.o.guard(spaceNeed(w.Pending(), w.o.memory())); err != nil {
		return err
	}
	if err := w.o.FS.Point(fault.SamplesBeforeBatch); err != nil {
		return err
	}
	if err := w.poison.do(ctx, w.putBatches); err != nil {
		return err
	}
	// Badger does not make the names of the logs durable that it begins. Where
	// that fails it must not do so later either, while closing.
	if err := w.o.FS.SyncDir(filepath.Join(w.dir, dbName)); err != nil {
		return w.poison.set(err)
	}
	if err := w.o.FS.Point(fault.SamplesAfterBatch); err != nil {
		return err
	}
	if _, err := w.index.Write(w.rowsB); err != nil {
		return err
	}
	if err := w.index.Sync(); err != nil {
		return err
	}
	return w.o.FS.Point(fault.SamplesAfterIndex)
}

// putBatches writes the collected records, cut into batches by bytes.
func (w *Writer) putBatches() error {
	start := 0
	for i := 0; i < len(w.ends); {
		wb := w.db.NewWriteBatch()
		for first := start; i < len(w.ends) && (start == first || w.ends[i]-first <= batchBytes); i++ {
			if err := wb.Set(w.keys[i*keySize:(i+1)*keySize], w.recs[start:w.ends[i]]); err != nil {
				wb.Cancel()
				return err
			}
			start = w.ends[i]
		}
		if err := wb.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// failed keeps the first error: after it nobody knows what is on disk, and
// only a new Writer, opened at the ledger's cursor, does.
func (w *Writer) failed(err error) error {
	if w.err == nil {
		w.err = err
	}
	return err
}

// Seal closes Badger, opens it again, reads every record back and compares it
// with its row, then marks the generation as complete. The Writer is closed.
func (w *Writer) Seal(ctx context.Context) error {
	if err := w.Flush(ctx); err != nil {
		return err
	}
	if err := w.o.FS.Point(fault.SamplesBeforeSeal); err != nil {
		return err
	}
	rows := w.rows
	if err := w.Close(); err != nil {
		return err
	}
	if err := Verify(ctx, w.dir, rows, w.o); err != nil {
		return err
	}
	return writeSeal(ctx, w.o.FS, w.dir, rows)
}

// Close closes the writer; what was added but not flushed is gone.
func (w *Writer) Close() error {
	if w.db == nil {
		return nil
	}
	err := errors.Join(w.poison.closeDB(w.db), w.index.Close())
	w.db = nil
	if w.err == nil {
		w.err = fmt.Errorf("%s: the writer is closed", w.dir)
	}
	return err
}
