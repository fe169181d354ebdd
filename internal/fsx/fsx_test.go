package fsx

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
)

// recorder is an FS that records what it does below dir.
func recorder(dir string) (*FS, *[]string) {
	var ops []string
	return &FS{Trace: func(op Op) {
		rel, err := filepath.Rel(dir, op.Path)
		if err != nil {
			rel = op.Path
		}
		ops = append(ops, fmt.Sprint(op.Kind, " ", rel))
	}}, &ops
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, want, got []string) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("operations (-want +got):\n%s", d)
	}
}

// names lists what is in dir.
func names(t *testing.T, dir string) []string {
	t.Helper()
	ents, err := os.ReadDir(dir)
	must(t, err)
	out := []string{}
	for _, e := range ents {
		out = append(out, e.Name())
	}
	return out
}

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

func TestWriteFileAtomic(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	path := filepath.Join(dir, "a")
	for _, content := range []string{"first", "second, which takes its place"} {
		*ops = nil
		must(t, fsys.WriteFileAtomic(path, text(content)))
		same(t, []string{"create a.tmp", "write a.tmp", "fsync a.tmp", "close a.tmp", "rename a", "dirsync ."}, *ops)
		if b, err := os.ReadFile(path); err != nil || string(b) != content {
			t.Errorf("%q, %v", b, err)
		}
	}
	var zero FS
	must(t, zero.WriteFileAtomic(path, text("without hooks")))
	must(t, (*FS)(nil).WriteFileAtomic(path, text("without anything")))
}

// TestWriteFileAtomicFails: the old file stays, nothing else does.
func TestWriteFileAtomicFails(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	path := filepath.Join(dir, "a")
	must(t, fsys.WriteFileAtomic(path, text("old")))
	wrong := errors.New("wrong")
	*ops = nil
	err := fsys.WriteFileAtomic(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return errors.Join(err, wrong)
	})
	if !errors.Is(err, wrong) {
		t.Errorf("error %v, want the writer's", err)
	}
	same(t, []string{"create a.tmp", "close a.tmp", "remove a.tmp"}, *ops)
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("the old file holds %q, %v", b, err)
	}

	// The name is taken by what cannot be replaced.
	must(t, os.MkdirAll(filepath.Join(dir, "b", "c"), 0o777))
	*ops = nil
	if err := fsys.WriteFileAtomic(filepath.Join(dir, "b"), text("new")); err == nil || !strings.Contains(err.Error(), "b") {
		t.Errorf("error %v, want one that names b", err)
	}
	same(t, []string{"create b.tmp", "write b.tmp", "fsync b.tmp", "close b.tmp", "rename b", "remove b.tmp"}, *ops)
	if d := cmp.Diff([]string{"a", "b"}, names(t, dir)); d != "" {
		t.Errorf("left behind: %s", d)
	}
	if err := fsys.WriteFileAtomic(filepath.Join(dir, "no", "a"), text("new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
}

// TestFailedSyncIsFinal: after an fsync that fails the file gets no name, and
// the fsync is not tried again. A FIFO can be written and not synced.
func TestFailedSyncIsFinal(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	must(t, unix.Mkfifo(filepath.Join(dir, "f.tmp"), 0o600))
	f, err := fsys.OpenFile(filepath.Join(dir, "f.tmp"), os.O_RDWR)
	must(t, err)
	err = fsys.Publish(f, filepath.Join(dir, "f"))
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "sync") || !strings.Contains(err.Error(), "f.tmp") {
		t.Errorf("error %v, want one that names fsync and the file", err)
	}
	same(t, []string{"fsync f.tmp", "close f.tmp"}, *ops)
	if d := cmp.Diff([]string{"f.tmp"}, names(t, dir)); d != "" {
		t.Errorf("a file that is not durable got its name: %s", d)
	}
	if _, err := f.Write([]byte("x")); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
}

func TestFullDeviceIsReported(t *testing.T) {
	f, err := (&FS{}).OpenFile("/dev/full", os.O_WRONLY)
	must(t, err)
	_, err = f.Write([]byte("x"))
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "/dev/full") {
		t.Errorf("error %v, want ENOSPC and the path", err)
	}
	_, err = f.WriteAt([]byte("x"), 10)
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want ENOSPC", err)
	}
	must(t, f.Close())
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	path := filepath.Join(dir, "a")
	must(t, os.WriteFile(path, []byte("what a crash left"), 0o666))
	f, err := fsys.Create(path)
	must(t, err)
	for _, err := range []error{
		second(f.Write([]byte("0123456789"))), second(f.WriteAt([]byte("ab"), 3)), f.Truncate(7), second64(f.Seek(1, io.SeekStart)),
		second(f.Write([]byte("-"))), f.Sync(),
	} {
		must(t, err)
	}
	b := make([]byte, 7)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "0-2ab56" {
		t.Errorf("%q, %v", b, err)
	}
	if f.Name() != path || f.OS() == nil {
		t.Errorf("name %q", f.Name())
	}
	must(t, f.Close())
	same(t, []string{"create a", "write a", "write a", "truncate a", "write a", "fsync a", "close a"}, *ops)
	*ops = nil
	f, err = fsys.OpenFile(path, os.O_RDONLY)
	must(t, err)
	must(t, f.Close())
	must(t, fsys.Remove(path))
	same(t, []string{"close a", "remove a"}, *ops)
	if _, err := fsys.OpenFile(path, os.O_RDONLY); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened what is gone: %v", err)
	}
}

func second(_ int, err error) error     { return err }
func second64(_ int64, err error) error { return err }

// TestRename: a move is durable in both directories.
func TestRename(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	must(t, fsys.MkdirAll(filepath.Join(dir, "x", "y")))
	same(t, []string{"mkdir x", "dirsync .", "mkdir x/y", "dirsync x"}, *ops)
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o666))
	*ops = nil
	must(t, fsys.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "x", "y", "a")))
	same(t, []string{"rename x/y/a", "dirsync x/y", "dirsync ."}, *ops)
	*ops = nil
	if err := fsys.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("moved what is gone: %v", err)
	}
	same(t, []string{"rename b"}, *ops) // nothing moved, nothing to sync
	if err := fsys.SyncDir(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "sync directory") {
		t.Errorf("error %v, want one that names the operation", err)
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	must(t, fsys.MkdirAll(dir))
	same(t, nil, *ops)
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o666))
	for _, path := range []string{"file", "file/below"} {
		if err := fsys.MkdirAll(filepath.Join(dir, path)); err == nil || !strings.Contains(err.Error(), "file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestSweepTemp removes unfinished files, and nothing that only looks like one.
func TestSweepTemp(t *testing.T) {
	dir := t.TempDir()
	fsys, ops := recorder(dir)
	for _, name := range []string{"a", "a.tmp", "b.tmp", "tmp", "c.tmp.ebb"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o666))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "dir.tmp"), 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "dir.tmp", "below.tmp"), nil, 0o666))
	must(t, os.Symlink("a", filepath.Join(dir, "link.tmp")))
	n, err := fsys.SweepTemp(dir)
	if n != 2 || err != nil {
		t.Errorf("%d removed, %v", n, err)
	}
	same(t, []string{"remove a.tmp", "remove b.tmp", "dirsync ."}, *ops)
	if d := cmp.Diff([]string{"a", "c.tmp.ebb", "dir.tmp", "link.tmp", "tmp"}, names(t, dir)); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
	*ops = nil
	for _, d := range []string{dir, filepath.Join(dir, "none")} {
		if n, err := fsys.SweepTemp(d); n != 0 || err != nil {
			t.Errorf("%s: %d removed, %v", d, n, err)
		}
	}
	same(t, nil, *ops)
	if _, err := fsys.SweepTemp(filepath.Join(dir, "a")); err == nil {
		t.Error("swept a file")
	}
}

func TestPointsAndNotes(t *testing.T) {
	if err := (*FS)(nil).Point(fault.GCAfterTrash); err != nil {
		t.Error(err)
	}
	(*FS)(nil).Note(OpCommit, "x", 1)
	fsys := &FS{Faults: fault.New(fault.GCAfterTrash, 2)}
	fsys.Note(OpCommit, "x", 1)
	if err := fsys.Point(fault.GCAfterTrash); err != nil {
		t.Error(err)
	}
	if err := fsys.Point(fault.GCAfterTrash); !errors.Is(err, fault.ErrInjected) {
		t.Errorf("error %v, want the injected one", err)
	}
}

func TestSpaceAt(t *testing.T) {
	sp, err := SpaceAt(t.TempDir())
	if err != nil || sp.Total <= 0 || sp.Free < 0 || sp.Free > sp.Total {
		t.Errorf("%+v, %v", sp, err)
	}
	_, err = SpaceAt(filepath.Join(t.TempDir(), "none"))
	var p *PathError
	if !errors.As(err, &p) || p.Op != "statfs" || filepath.Base(p.Path) != "none" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want one that names operation and path", err)
	}
}
