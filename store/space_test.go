package store_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func TestCheckSpace(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name       string
		path       string
		need, keep int64
		full       bool
	}{
		{"nothing", dir, 0, 0, false},
		{"little", dir, 1, 1, false},
		{"path not there", filepath.Join(dir, "a", "b"), 1, 1, false},
		{"too much", dir, 1 << 60, 0, true},
		{"reserve too large", dir, 1, 1 << 60, true},
		{"no overflow", dir, math.MaxInt64, math.MaxInt64, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := store.CheckSpace(tt.path, tt.need, tt.keep)
			if (err != nil) != tt.full {
				t.Fatalf("error %v, want one: %v", err, tt.full)
			}
			var s *store.SpaceError
			if tt.full && (!errors.Is(err, store.ErrDiskFull) || !errors.As(err, &s) || s.Need != tt.need || s.Keep != tt.keep || s.Free <= 0 || s.Missing() <= 0) {
				t.Errorf("error %+v", err)
			}
		})
	}
}

func TestReserve(t *testing.T) {
	w := storetest.MustInit(t)
	path := filepath.Join(w.Dir(), "reserve.bin")
	allocated := func() int64 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if n := allocated(); n < 64<<10 {
		t.Errorf("reserve holds %d bytes of disk, want %d", n, 64<<10)
	}
	if err := errors.Join(w.ReleaseReserve(), w.ReleaseReserve()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reserve still there: %v", err)
	}
	if err := errors.Join(w.RestoreReserve(), w.RestoreReserve()); err != nil {
		t.Fatal(err)
	}
	if n := allocated(); n < 64<<10 {
		t.Errorf("restored reserve holds %d bytes of disk", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w, err := store.Open(t.Context(), w.Dir(), store.Options{Reserve: 1 << 60})
	if err != nil {
		t.Fatal("no room for a reserve is no reason not to open:", err)
	}
	defer w.Close()
	if err := w.RestoreReserve(); !errors.Is(err, store.ErrDiskFull) {
		t.Errorf("restored a reserve of 1 EiB: %v", err)
	}
}

// volume mounts a small filesystem of its own.
func volume(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("needs to mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fillUp writes until the volume of dir is full.
func fillUp(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for b := make([]byte, 4096); ; {
		if _, err := f.Write(b); errors.Is(err, syscall.ENOSPC) {
			return path
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk: the workspace opens and is seen, the reserve gives the ledger
// room for its last steps, a step without room is refused whole, and with room
// made it goes on.
func TestFullDisk(t *testing.T) {
	root := volume(t, "16m")
	dir := filepath.Join(root, "work")
	// The log is a step ahead, so that opening has something to write.
	w := storetest.MustInitFS(t, dir, &fsx.FS{Faults: fault.New(fault.LedgerAfterAppend, 1)})
	err := w.Update(t.Context(), "first", func(tx *store.Tx) error { return setCount(tx, 1) })
	if !errors.Is(err, fault.ErrInjected) {
		t.Fatal(err)
	}
	if err := errors.Join(w.RestoreReserve(), w.Close()); err != nil {
		t.Fatal(err)
	}
	filler := fillUp(t, root)
	s, err := store.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := count(s); n != 1 || err != nil {
		t.Errorf("snapshot counts %d, error %v", n, err)
	}
	w = storetest.MustOpen(t, dir)
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 2) })
	fillUp(t, root)
	err = w.Update(t.Context(), "large", func(tx *store.Tx) error {
		return errors.Join(setCount(tx, 3), tx.PutValue("big", make([]byte, 1<<20)))
	})
	var sp *store.SpaceError
	if !errors.Is(err, store.ErrDiskFull) || !errors.As(err, &sp) || sp.Need < 1<<20 {
		t.Fatalf("error %v, want no room for 1 MiB", err)
	}
	if n := mustCount(t, w); n != 2 {
		t.Errorf("count %d, want 2", n)
	}
	if err := w.CheckLedger(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 4) })
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, 4)
}

func TestInitOnFullDisk(t *testing.T) {
	root := volume(t, "64k")
	fillUp(t, root)
	_, err := store.Init(t.Context(), filepath.Join(root, "work"), store.Options{})
	if !errors.Is(err, store.ErrDiskFull) || !strings.Contains(err.Error(), root) {
		t.Errorf("error %v, want no room, and where", err)
	}
}

// TestVolumeWithoutASize: a filesystem that does not say how large it is has
// room, and gets no reserve.
func TestVolumeWithoutASize(t *testing.T) {
	root := volume(t, "0")
	w, err := store.Init(t.Context(), filepath.Join(root, "work"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	if err := errors.Join(store.CheckSpace(root, 1<<40, 1<<40), w.RestoreReserve(), w.Close()); err != nil {
		t.Error(err)
	}
	open(t, w.Dir(), 1)
}

// TestLedgerHasItsRoom: log and manifest own more blocks than they have filled, so
// that a change needs none where others have taken all.
func TestLedgerHasItsRoom(t *testing.T) {
	probe, err := os.Create(filepath.Join(t.TempDir(), "probe"))
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	if err := unix.Fallocate(int(probe.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the filesystem of temporary files cannot allocate ahead")
	}
	dir := t.TempDir()
	w := storetest.MustInitFS(t, dir, nil)
	for i := range 40 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for path, used := range ledgerFiles(t, dir) {
			st, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := st.Sys().(*syscall.Stat_t).Blocks * 512; n < used+100<<10 {
				t.Errorf("after %d changes %s has filled %d bytes and has %d of disk", i, path, used, n)
			}
		}
		w = storetest.MustOpen(t, dir)
		for k := range 3 {
			update(t, w, func(tx *store.Tx) error { return tx.PutValue(fmt.Sprint(i, k), make([]byte, 9<<10)) })
		}
	}
}

// ledgerFiles returns how much of the files of a closed ledger is filled.
func ledgerFiles(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	log, db := filepath.Join(dir, "checkpoints.jsonl"), filepath.Join(dir, "manifest.db")
	st, err := os.Stat(log)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]int64{log: st.Size()}
	b, err := bolt.Open(db, 0, &bolt.Options{ReadOnly: true})
	if err == nil {
		err = errors.Join(b.View(func(tx *bolt.Tx) error { used[db] = tx.Size(); return nil }), b.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return used
}
