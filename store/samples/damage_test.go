package samples

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/dgraph-io/badger/v4"
)

// sealed builds a generation of the samples that it returns.
func sealed(t *testing.T) (dir string, all []Sample) {
	t.Helper()
	all = makeSamples(1, 0, 60)
	dir = filepath.Join(t.TempDir(), "000001")
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, all)
	if err := w.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	return dir, all
}

func isCorrupt(t *testing.T, err error) {
	t.Helper()
	var c *CorruptError
	if !errors.As(err, &c) {
		t.Errorf("error %v, want a CorruptError", err)
	}
}

func TestDamagedRowIndex(t *testing.T) {
	t.Run("a flipped bit in the row index", func(t *testing.T) {
		dir, _ := sealed(t)
		flip(t, filepath.Join(dir, rowsName), rowsHead+37*rowSize+5)
		_, err := OpenRows(dir, 60)
		isCorrupt(t, err)
		r, err := OpenRows(dir, 37) // the rows before it are whole
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
	})
	t.Run("two rows swapped", func(t *testing.T) {
		dir, _ := sealed(t)
		path := filepath.Join(dir, rowsName)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		x, y := b[rowsHead:rowsHead+rowSize], b[rowsHead+rowSize:rowsHead+2*rowSize]
		for i := range x {
			x[i], y[i] = y[i], x[i]
		}
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
		_, err = OpenRows(dir, 60)
		isCorrupt(t, err)
	})
	t.Run("a short row index", func(t *testing.T) {
		dir, _ := sealed(t)
		if err := os.Truncate(filepath.Join(dir, rowsName), rowsHead+59*rowSize+51); err != nil {
			t.Fatal(err)
		}
		_, err := OpenRows(dir, 60)
		isCorrupt(t, err)
		_, err = Open(dir, 60, small())
		isCorrupt(t, err)
	})
}

func TestDamagedRecords(t *testing.T) {
	ctx := context.Background()
	t.Run("a flipped bit in the value log", func(t *testing.T) {
		dir, all := sealed(t)
		logs, err := filepath.Glob(filepath.Join(dir, dbName, "*.vlog"))
		if err != nil || len(logs) == 0 {
			t.Fatalf("value logs %v, error %v", logs, err)
		}
		flip(t, logs[0], 20_000)
		isCorrupt(t, Verify(ctx, dir, 60, small()))
		isCorrupt(t, CheckSealed(dir, 61))
		if err := CheckSealed(dir, 60); err != nil {
			t.Errorf("the sizes are right: %v", err)
		}
		s, err := Open(dir, 60, small())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		bad := 0
		for i := range all {
			if _, err := s.Get(ctx, 1, uint64(i)); err != nil {
				bad++
			}
		}
		if bad == 0 {
			t.Error("no Get noticed")
		}
	})
	t.Run("an empty value", func(t *testing.T) {
		dir, _ := sealed(t)
		overwrite(t, dir, appendKey(nil, 1, 7), nil)
		isCorrupt(t, Verify(ctx, dir, 60, small()))
	})
	t.Run("the record of another sample", func(t *testing.T) {
		dir, all := sealed(t)
		rec, err := newEncoder().append(nil, &all[8])
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, dir, appendKey(nil, 1, 7), rec)
		isCorrupt(t, Verify(ctx, dir, 60, small()))
		s, err := Open(dir, 60, small())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		_, err = s.Get(ctx, 1, 7)
		isCorrupt(t, err)
		_, err = s.Get(ctx, 1, 60)
		isCorrupt(t, err)
	})
}

// TestShortDatabase: a file of Badger's that is cut ends in an error, not in a
// panic of a goroutine of Badger's; also where no list of files helps.
func TestShortDatabase(t *testing.T) {
	ctx := context.Background()
	for _, listed := range []bool{true, false} {
		for _, cut := range []int64{0, 1, 3, 4, 100} {
			dir, _ := sealed(t)
			if !listed {
				for _, name := range []string{sealName, listName} {
					if err := os.Remove(filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			tables, err := filepath.Glob(filepath.Join(dir, dbName, "*.sst"))
			if err != nil || len(tables) == 0 {
				t.Fatalf("tables %v, error %v", tables, err)
			}
			st, err := os.Stat(tables[0])
			if err != nil {
				t.Fatal(err)
			}
			size := cut
			if cut > 4 {
				size = st.Size() - cut
			}
			if err := os.Truncate(tables[0], size); err != nil {
				t.Fatal(err)
			}
			isCorrupt(t, Verify(ctx, dir, 60, small()))
			_, err = Open(dir, 60, small())
			isCorrupt(t, err)
		}
	}
}

func TestTooManyRecords(t *testing.T) {
	ctx := context.Background()
	t.Run("a record too many", func(t *testing.T) {
		dir, _ := sealed(t)
		isCorrupt(t, Verify(ctx, dir, 59, small()))
	})
	t.Run("a record that an interrupted merge had not counted", func(t *testing.T) {
		dir, _ := sealed(t)
		if err := os.Remove(filepath.Join(dir, sealName)); err != nil {
			t.Fatal(err)
		}
		if err := Verify(ctx, dir, 59, small()); err != nil {
			t.Errorf("reported as damage: %v", err)
		}
	})
}

func flip(t *testing.T, path string, off int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[off] ^= 0x10
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// overwrite changes a record of a sealed generation, as none but a writer could
// that also makes the list of files anew: here there is none.
func overwrite(t *testing.T, dir string, key, value []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, sealName), []byte(`{"format":1,"rows":60}`), 0o666); err != nil {
		t.Fatal(err)
	}
	db, err := badger.Open(badgerOptions(filepath.Join(dir, dbName), 32<<20, newPoison(dir, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(txn *badger.Txn) error { return txn.Set(key, value) }); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTableOfZeros: a table that a disk gives back as zeros has the form of one whose
// index is empty, on which Badger panics in a goroutine of its own.
func TestTableOfZeros(t *testing.T) {
	dir, all := sealed(t)
	tables, err := filepath.Glob(filepath.Join(dir, dbName, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("%v, %v", tables, err)
	}
	st, err := os.Stat(tables[0])
	if err == nil {
		err = os.WriteFile(tables[0], make([]byte, st.Size()), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, int64(len(all)), small())
	isCorrupt(t, err)
}

// TestUnfinishedTable: a table that a killed writer was at, which no MANIFEST names, is
// no damage.
func TestUnfinishedTable(t *testing.T) {
	dir, all := filepath.Join(t.TempDir(), "000001"), makeSamples(1, 0, 20)
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, all)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, dbName, "000099.sst"), make([]byte, 5000), 0o666); err != nil {
		t.Fatal(err)
	}
	w = mustWriter(t, dir, int64(len(all)), small())
	if err := w.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkAll(t, dir, all)
}
