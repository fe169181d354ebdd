package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// counted makes a closed workspace at count n. With ahead, the last step is in
// the log only, as after a crash.
func counted(t *testing.T, n int, ahead bool) string {
	t.Helper()
	var fsys *fsx.FS
	if ahead {
		fsys = &fsx.FS{Faults: fault.New(fault.LedgerAfterAppend, int64(n))}
	}
	w := storetest.MustInitFS(t, t.TempDir(), fsys)
	for i := 1; i <= n; i++ {
		err := w.Update(t.Context(), "count", func(tx *store.Tx) error { return setCount(tx, i) })
		if (err != nil) != (ahead && i == n) {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Dir()
}

func logPath(dir string) string      { return filepath.Join(dir, "checkpoints.jsonl") }
func manifestPath(dir string) string { return filepath.Join(dir, "manifest.db") }

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
}

// open opens dir, whose count is to be want.
func open(t *testing.T, dir string, want int) {
	t.Helper()
	w, err := store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if n := mustCount(t, w); n != want {
		t.Errorf("count %d, want %d", n, want)
	}
	if err := w.CheckLedger(t.Context()); err != nil {
		t.Error(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// corrupt opens dir, which is to fail as damage, with all of want in the error.
func corrupt(t *testing.T, dir string, want ...string) *store.CorruptError {
	t.Helper()
	w, err := store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10})
	if err == nil {
		w.Close()
		t.Fatal("opened")
	}
	var c *store.CorruptError
	if !errors.Is(err, store.ErrCorrupt) || !errors.As(err, &c) {
		t.Fatalf("error %v, want damage", err)
	}
	for _, s := range want {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
	if c.Hint == "" {
		t.Errorf("no way out of %v", err)
	}
	return c
}

// lastLine returns where the last line of a log begins.
func lastLine(log []byte) int { return bytes.LastIndexByte(log[:len(log)-1], '\n') + 1 }

// TestTornAtEveryByte: whatever part of its line a crash left, the step that
// did not reach manifest.db is gone whole, and the one before it is there.
func TestTornAtEveryByte(t *testing.T) {
	dir := counted(t, 3, true)
	log, db := read(t, logPath(dir)), read(t, manifestPath(dir))
	from := lastLine(log)
	forms := []struct {
		name string
		torn func(k int) []byte
	}{
		{"cut", func(k int) []byte { return log[:k] }},
		{"rest zero", func(k int) []byte { return append(bytes.Clone(log[:k]), make([]byte, len(log)-k)...) }},
		{"zero before", func(k int) []byte {
			b := bytes.Clone(log)
			clear(b[from : k+1])
			return b
		}},
	}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) {
			for k := from; k < len(log); k++ {
				write(t, logPath(dir), f.torn(k))
				write(t, manifestPath(dir), db)
				s, err := store.Inspect(dir)
				if err != nil {
					t.Fatalf("byte %d: %v", k, err)
				}
				if n, err := count(s); n != 2 || err != nil || (s.Torn == 0) != (len(f.torn(k)) == from) {
					t.Fatalf("byte %d: snapshot of %d, torn %d, error %v", k, n, s.Torn, err)
				}
				open(t, dir, 2)
				if got := read(t, logPath(dir)); !bytes.Equal(got, log[:from]) {
					t.Fatalf("byte %d: torn line not cut off", k)
				}
			}
		})
	}
	write(t, logPath(dir), log)
	write(t, manifestPath(dir), db)
	open(t, dir, 3)
}

// TestLostEnd: a log that ends before manifest.db has lost something that
// counted; it is not cut.
func TestLostEnd(t *testing.T) {
	dir := counted(t, 3, false)
	log := read(t, logPath(dir))
	from := lastLine(log)
	for _, k := range []int{from, from + 1, len(log) - 1} {
		write(t, logPath(dir), log[:k])
		c := corrupt(t, dir, "checkpoints.jsonl", "whole lines end at step 3, but manifest.db is at step 4")
		if c.Offset != int64(from) {
			t.Errorf("offset %d, want %d", c.Offset, from)
		}
		if got := read(t, logPath(dir)); !bytes.Equal(got, log[:k]) {
			t.Fatal("the log was changed")
		}
		if err := store.RebuildManifest(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("rebuilding the manifest would lose a step: %v", err)
		}
	}
	if err := store.RebuildLog(t.Context(), dir, store.Options{}); err != nil {
		t.Fatal(err)
	}
	open(t, dir, 3)
}

func TestDamagedMiddle(t *testing.T) {
	dir := counted(t, 3, false)
	log := read(t, logPath(dir))
	second := bytes.IndexByte(log, '\n') + 1
	third := second + bytes.IndexByte(log[second:], '\n') + 1
	tests := []struct {
		name, err string
		log       []byte
		at        int
		count     int // what a snapshot still shows
	}{
		{"flipped bit", `"line 2": not a whole line: checksum is`, flip(log, second+20), second, 0},
		{"flipped newline", `"line 2": not a whole line`, flip(log, third-1), second, 0},
		{"lost line", `"line 2": step 3 follows step 1`, append(bytes.Clone(log[:second]), log[third:]...), second, 0},
		{"line twice", `"line 3": step 2 follows step 2`, append(bytes.Clone(log[:third]), log[second:]...), third, 1},
		{"no first line", `"line 1": step 2 follows step 0`, log[second:], 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			write(t, logPath(dir), tt.log)
			c := corrupt(t, dir, "checkpoints.jsonl", fmt.Sprintf("byte %d", tt.at), tt.err)
			if c.Offset != int64(tt.at) {
				t.Errorf("offset %d, want %d", c.Offset, tt.at)
			}
			s, err := store.Inspect(dir)
			if !errors.Is(err, store.ErrCorrupt) || s == nil {
				t.Fatalf("snapshot %v, error %v: want both", s, err)
			}
			if n, err := count(s); n != tt.count || err != nil {
				t.Errorf("snapshot counts %d, error %v, want %d", n, err, tt.count)
			}
		})
	}
	if err := store.RebuildManifest(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("manifest rebuilt from a damaged log: %v", err)
	}
	if err := store.RebuildLog(t.Context(), dir, store.Options{}); err != nil {
		t.Fatal(err)
	}
	open(t, dir, 3)
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 1
	return b
}

// TestDamagedManifest: no damage of manifest.db is opened as something else
// than what the log says, and each is repaired from the log.
func TestDamagedManifest(t *testing.T) {
	dir := counted(t, 5, false)
	good := read(t, manifestPath(dir))
	path := manifestPath(dir)
	try := func(name string, damage func()) {
		t.Run(name, func(t *testing.T) {
			write(t, path, good)
			damage()
			w, err := store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10})
			if err == nil {
				if n := mustCount(t, w); n != 5 {
					t.Errorf("opened with count %d", n)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("error %v, want damage", err)
			}
			if err := store.RebuildManifest(t.Context(), dir, store.Options{}); err != nil {
				t.Fatal(err)
			}
			open(t, dir, 5)
		})
	}
	for off := int64(0); off < int64(len(good)); off += 4096 {
		try(fmt.Sprintf("page %d", off/4096), func() { storetest.ZeroPage(t, path, off) })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		off := rng.Int64N(int64(len(good)))
		try(fmt.Sprintf("bit %d", off), func() { storetest.FlipBit(t, path, off) })
	}
	for _, n := range []int64{0, 1, 4096, 8192, 12288, int64(len(good)) - 1} {
		try(fmt.Sprintf("cut %d", n), func() { storetest.Truncate(t, path, n) })
	}
	try("removed", func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRebuildMarker: a marker that is lost, or says what it should not, is made
// anew where log and manifest agree on what it said.
func TestRebuildMarker(t *testing.T) {
	dir := counted(t, 3, false)
	marker := filepath.Join(dir, "EAGLEBATCH")
	want := read(t, marker)
	damage := map[string]func() error{
		"removed": func() error { return os.Remove(marker) },
		"emptied": func() error { return os.Truncate(marker, 0) },
		"another": func() error { return os.WriteFile(marker, []byte(`{"root_id":"x","format":1}`), 0o666) },
	}
	for name, hurt := range damage {
		t.Run(name, func(t *testing.T) {
			if err := hurt(); err != nil {
				t.Fatal(err)
			}
			var c *store.CorruptError
			if _, err := store.Open(t.Context(), dir, store.Options{}); !errors.As(err, &c) || !strings.Contains(c.Hint, "--rebuild-marker") {
				t.Fatalf("error %v, want damage and what makes the marker anew", err)
			}
			if err := store.RebuildMarker(t.Context(), dir, store.Options{}); err != nil {
				t.Fatal(err)
			}
			if got := read(t, marker); !bytes.Equal(got, want) {
				t.Errorf("the marker is %s, was %s", got, want)
			}
			open(t, dir, 3)
		})
	}
	other := counted(t, 1, false)
	write(t, logPath(dir), read(t, logPath(other)))
	if err := store.RebuildMarker(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("a marker for a log and a manifest of different workspaces: %v", err)
	}
	empty := t.TempDir()
	if err := store.RebuildMarker(t.Context(), empty, store.Options{}); err == nil {
		t.Error("a marker for nothing")
	} else if ents, err := os.ReadDir(empty); err != nil || len(ents) > 0 {
		t.Errorf("left in an empty directory: %v, %v", ents, err)
	}
}

func TestManifestBehind(t *testing.T) {
	dir := counted(t, 1, false)
	old := read(t, manifestPath(dir))
	w := storetest.MustOpen(t, dir)
	for i := 2; i <= 4; i++ {
		update(t, w, func(tx *store.Tx) error { return setCount(tx, i) })
	}
	want := view(t, w)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, manifestPath(dir), old)
	corrupt(t, dir, "manifest.db", "at step 2, checkpoints.jsonl is at step 5")
	if err := store.RebuildLog(t.Context(), dir, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("rebuilding the log would lose three steps: %v", err)
	}
	if err := store.RebuildManifest(t.Context(), dir, store.Options{}); err != nil {
		t.Fatal(err)
	}
	w = storetest.MustOpen(t, dir)
	if diff := cmp.Diff(want, view(t, w)); diff != "" {
		t.Errorf("rebuilt (-want +got):\n%s", diff)
	}
}

func TestForeignLedger(t *testing.T) {
	a, b := counted(t, 1, false), counted(t, 1, false)
	write(t, logPath(a), read(t, logPath(b)))
	corrupt(t, a, "checkpoints.jsonl", "meta/root_id", "belongs to workspace")
	for name, repair := range map[string]error{
		"manifest": store.RebuildManifest(t.Context(), a, store.Options{}),
	} {
		if !errors.Is(repair, store.ErrCorrupt) {
			t.Errorf("%s rebuilt from a foreign log: %v", name, repair)
		}
	}
	write(t, manifestPath(a), read(t, manifestPath(b)))
	if err := store.RebuildLog(t.Context(), a, store.Options{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("log rebuilt from a foreign manifest: %v", err)
	}
}
