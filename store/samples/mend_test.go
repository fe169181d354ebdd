package samples

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestFailedFlushIsMended: a flush that fails leaves a record in Badger's
// MANIFEST, whole or torn, of a table that is not there; its rows are in the
// write-ahead log. Nothing that counts is lost.
func TestFailedFlushIsMended(t *testing.T) {
	all := makeSamples(1, 0, 60)
	for name, damage := range map[string]func(old, flushed []byte) []byte{
		"nothing":       func(old, _ []byte) []byte { return old },
		"whole record":  func(_, flushed []byte) []byte { return flushed },
		"torn record":   func(_, flushed []byte) []byte { return flushed[:len(flushed)-1] },
		"record's head": func(old, flushed []byte) []byte { return flushed[:len(old)+3] },
		"zeros":         func(old, flushed []byte) []byte { return append(old, make([]byte, len(flushed)-len(old))...) },
		"wrong bytes":   func(_, flushed []byte) []byte { flushed[len(flushed)-1]++; return flushed },
	} {
		t.Run(name, func(t *testing.T) {
			dir, failed := filepath.Join(t.TempDir(), "000001"), filepath.Join(t.TempDir(), "000001")
			w := mustWriter(t, dir, 0, small())
			mustAppend(t, w, all[:40])
			copyTree(t, dir, failed)
			manifest := filepath.Join(failed, dbName, manifestName)
			old := mustRead(t, manifest)
			if err := w.Close(); err != nil { // flushes
				t.Fatal(err)
			}
			flushed := mustRead(t, filepath.Join(dir, dbName, manifestName))
			if len(flushed) <= len(old) {
				t.Fatal("closing flushed nothing: the test proves nothing")
			}
			if err := os.WriteFile(manifest, damage(old, flushed), 0o666); err != nil {
				t.Fatal(err)
			}
			checkAll(t, failed, all[:40])
			w = mustWriter(t, failed, 40, small())
			mustAppend(t, w, all[40:])
			if err := w.Seal(context.Background()); err != nil {
				t.Fatal(err)
			}
			checkAll(t, failed, all)
		})
	}
}

// TestSealedIsNotMended: of a sealed generation nothing may be missing.
func TestSealedIsNotMended(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "000001")
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, makeSamples(1, 0, 10))
	if err := w.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, dbName, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("%d tables, error %v", len(tables), err)
	}
	if err := os.Remove(tables[0]); err != nil {
		t.Fatal(err)
	}
	before := mustRead(t, filepath.Join(dir, dbName, manifestName))
	if _, err := Open(dir, 10, small()); err == nil {
		t.Error("opened although a table is missing")
	}
	if after := mustRead(t, filepath.Join(dir, dbName, manifestName)); string(after) != string(before) {
		t.Error("its MANIFEST was changed")
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBeginsAnew: where no row counts, what a crash left of an empty generation
// is no reason not to begin: lengths without bytes, half a database.
func TestBeginsAnew(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "000001")
	if err := os.MkdirAll(filepath.Join(dir, dbName), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{rowsName, dbName + "/KEYREGISTRY", dbName + "/" + manifestName, dbName + "/000001.vlog"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 64), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	all := makeSamples(1, 0, 10)
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, all)
	if err := w.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkAll(t, dir, all)
}
