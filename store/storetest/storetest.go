// Package storetest opens workspaces for tests and damages files in ways that
// disks and people do.
package storetest

import (
	"context"
	"errors"
	"os"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
)

// options keeps the reserve small: tests make many workspaces.
func options(fsys *fsx.FS) store.Options {
	return store.Options{FS: fsys, Memory: 64 << 20, Command: "test", Reserve: 64 << 10}
}

// MustInit makes a workspace in a temporary directory.
func MustInit(tb testing.TB) *store.Workspace {
	tb.Helper()
	return MustInitFS(tb, tb.TempDir(), nil)
}

// MustInitFS makes a workspace in dir, whose changes go through fsys.
func MustInitFS(tb testing.TB, dir string, fsys *fsx.FS) *store.Workspace {
	tb.Helper()
	w, err := store.Init(tb.Context(), dir, options(fsys))
	if err != nil {
		tb.Fatal(err)
	}
	closeAtEnd(tb, w)
	return w
}

// MustOpen opens the workspace in dir.
func MustOpen(tb testing.TB, dir string) *store.Workspace {
	tb.Helper()
	w, err := store.Open(tb.Context(), dir, options(nil))
	if err != nil {
		tb.Fatal(err)
	}
	closeAtEnd(tb, w)
	return w
}

// closeAtEnd checks the ledger and closes w, unless the test closed it.
func closeAtEnd(tb testing.TB, w *store.Workspace) {
	tb.Cleanup(func() {
		if err := w.CheckLedger(context.Background()); errors.Is(err, store.ErrCorrupt) {
			tb.Errorf("the test leaves a damaged ledger: %v", err)
		}
		if err := w.Close(); err != nil {
			tb.Errorf("close workspace: %v", err)
		}
	})
}

// FlipBit inverts the lowest bit of the byte at off; a negative off counts
// from the end.
func FlipBit(tb testing.TB, path string, off int64) {
	tb.Helper()
	change(tb, path, off, 1, func(b []byte) { b[0] ^= 1 })
}

// ZeroPage zeroes the 4096 bytes from off, as far as the file goes.
func ZeroPage(tb testing.TB, path string, off int64) {
	tb.Helper()
	change(tb, path, off, 4096, func(b []byte) { clear(b) })
}

// Truncate cuts the file to n bytes; a negative n counts from the end.
func Truncate(tb testing.TB, path string, n int64) {
	tb.Helper()
	if n < 0 {
		n += size(tb, path)
	}
	if err := os.Truncate(path, n); err != nil {
		tb.Fatal(err)
	}
}

func size(tb testing.TB, path string) int64 {
	tb.Helper()
	st, err := os.Stat(path)
	if err != nil {
		tb.Fatal(err)
	}
	return st.Size()
}

func change(tb testing.TB, path string, off, n int64, fn func([]byte)) {
	tb.Helper()
	total := size(tb, path)
	if off < 0 {
		off += total
	}
	if off < 0 || off >= total {
		tb.Fatalf("%s: no byte %d in %d", path, off, total)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	b := make([]byte, min(n, total-off))
	if _, err := f.ReadAt(b, off); err != nil {
		tb.Fatal(err)
	}
	fn(b)
	if _, err := f.WriteAt(b, off); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
}
