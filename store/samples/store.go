package samples

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/dgraph-io/badger/v4"
)

// Store reads a sealed or unfinished generation; safe for concurrent use.
// Random reads wait for the disk: 8 to 16 readers keep it busy.
type Store struct {
	dir    string
	db     *badger.DB
	poison *poison
}

// Open opens dir for reading; rows, the ledger's count, must be there. The
// logs of a killed writer are replayed first.
func Open(dir string, rows int64, o Options) (*Store, error) {
	sealed, err := look(dir, rows)
	if err != nil {
		return nil, err
	}
	db, p, err := openReadOnly(filepath.Join(dir, dbName), o, sealed)
	if err != nil {
		return nil, err
	}
	return &Store{dir: dir, db: db, poison: p}, nil
}

// look finds out without Badger whether a generation is there, and sealed.
func look(dir string, rows int64) (sealed bool, err error) {
	if err := CheckRows(dir, rows); err != nil {
		return false, err
	}
	mark, sealed, err := readSeal(dir)
	if err == nil && sealed {
		err = checkFiles(context.Background(), dir, mark, false)
	}
	return sealed, err
}

// Get returns one sample, verified against its own checksum.
func (s *Store) Get(ctx context.Context, dataset uint32, index uint64) (*Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.poisoned(); err != nil {
		return nil, err
	}
	var out *Sample
	corrupt := func(err error) error {
		return &CorruptError{Path: s.dir, Key: keyName(dataset, index), Err: err}
	}
	err := s.db.View(func(txn *badger.Txn) error {
		item, err := txn.Get(appendKey(nil, dataset, index))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return corrupt(errors.New("the sample is missing"))
		}
		if err != nil {
			return err
		}
		return item.Value(func(v []byte) error {
			out, err = decodeRecord(v)
			if err != nil {
				return corrupt(err)
			}
			if out.Dataset != dataset || out.Index != index {
				return corrupt(fmt.Errorf("holds %s", keyName(out.Dataset, out.Index)))
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// poisoned returns an error that Badger only logged: of a database that is only
// read, it is something that cannot be read.
func (s *Store) poisoned() error {
	if err := s.poison.check(); err != nil {
		return unreadable(s.dir, err)
	}
	return nil
}

// Close closes the store; no Get may be running.
func (s *Store) Close() error { return s.poison.closeDB(s.db) }

// Verify reads every record of the generation in dir and compares it with its
// row: key order is row order, so the i-th record belongs to row i. Records
// beyond the last row are damage only where the generation is sealed: an
// interrupted merge has written more than it had counted, and goes over it.
func Verify(ctx context.Context, dir string, rows int64, o Options) error {
	index, err := OpenRows(dir, rows)
	if err != nil {
		return err
	}
	defer index.Close()
	s, err := Open(dir, rows, o)
	if err != nil {
		return err
	}
	mark, sealed, err := readSeal(dir)
	if err == nil && sealed {
		err = checkFiles(ctx, dir, mark, true)
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	n, err := s.verify(ctx, index, sealed)
	if err == nil && n != rows {
		err = &CorruptError{Path: dir, Err: fmt.Errorf("%d records for %d rows", n, rows)}
	}
	return errors.Join(err, s.Close())
}

func (s *Store) verify(ctx context.Context, index *Rows, sealed bool) (n int64, err error) {
	err = s.db.View(func(txn *badger.Txn) error {
		o := badger.DefaultIteratorOptions
		o.PrefetchValues = false
		it := txn.NewIterator(o)
		defer it.Close()
		for it.Rewind(); it.Valid() && (sealed || n < index.Len()); it.Next() {
			if err := errors.Join(ctx.Err(), s.poisoned()); err != nil {
				return err
			}
			if err := s.verifyItem(it.Item(), index, n); err != nil {
				return err
			}
			n++
		}
		return s.poisoned()
	})
	return n, err
}

func (s *Store) verifyItem(item *badger.Item, index *Rows, i int64) error {
	dataset, number, ok := splitKey(item.Key())
	if !ok {
		return &CorruptError{Path: s.dir, Err: fmt.Errorf("a key of %d bytes", len(item.Key()))}
	}
	err := item.Value(func(v []byte) error {
		h, err := checkRecord(v)
		switch {
		case err != nil:
			return err
		case h.dataset != dataset || h.index != number:
			return fmt.Errorf("holds %s", keyName(h.dataset, h.index))
		case i >= index.Len():
			return fmt.Errorf("has no row: the ledger counts %d", index.Len())
		case int(index.At(i).Length) != h.n:
			return fmt.Errorf("has %d tokens, row %d says %d", h.n, i, index.At(i).Length)
		}
		return nil
	})
	if err != nil {
		return &CorruptError{Path: s.dir, Key: keyName(dataset, number), Err: err}
	}
	return nil
}
