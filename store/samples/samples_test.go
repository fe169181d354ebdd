package samples

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
)

func small() Options { return Options{FS: &fsx.FS{}, Memory: 32 << 20} }

// makeSamples makes n samples, from dataset d, the lengths varied so that records
// lie on both sides of Badger's value threshold.
func makeSamples(d uint32, first, n int) []Sample {
	out := make([]Sample, n)
	for i := range out {
		r := rand.New(rand.NewPCG(uint64(d), uint64(first+i)))
		s := Sample{Dataset: d, Index: uint64(first + i), File: uint32(i % 3), Line: int64(2 * i)}
		if i%2 == 0 {
			s.ID = fmt.Sprintf("id-%d", i)
		}
		for range 1 + r.IntN([]int{8, 2000}[(first+i)%2]) {
			s.IDs = append(s.IDs, uint32(r.IntN(163840)))
			s.Mask = append(s.Mask, byte(r.IntN(2)))
		}
		if i%3 == 0 {
			s.Segments = []Segment{{"prompt", 1}, {"response", uint32(len(s.IDs))}}
		}
		out[i] = s
	}
	return out
}

func mustWriter(t testing.TB, dir string, rows int64, o Options) *Writer {
	t.Helper()
	w, err := OpenWriter(dir, rows, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func mustAppend(t testing.TB, w *Writer, b []Sample) {
	t.Helper()
	if err := w.Append(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

func checkAll(t testing.TB, dir string, want []Sample) {
	t.Helper()
	st, err := Open(dir, int64(len(want)), small())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	rows, err := OpenRows(dir, int64(len(want)))
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for i := range want {
		got, err := st.Get(context.Background(), want[i].Dataset, want[i].Index)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&want[i], got); d != "" {
			t.Fatalf("sample %d (-want +got):\n%s", i, d)
		}
		if d := cmp.Diff(MakeRow(&want[i]), rows.At(int64(i))); d != "" {
			t.Fatalf("row %d (-want +got):\n%s", i, d)
		}
	}
}

func TestWriteSealRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "samples", "000001")
	a, b := makeSamples(3, 0, 70), makeSamples(9, 0, 40)
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, a[:50])
	mustAppend(t, w, a[50:])
	mustAppend(t, w, b)
	if w.Rows() != 110 {
		t.Fatalf("Rows() = %d, want 110", w.Rows())
	}
	if err := w.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n, ok, err := Sealed(dir); n != 110 || !ok || err != nil {
		t.Fatalf("Sealed() = %d, %v, %v", n, ok, err)
	}
	checkAll(t, dir, append(a, b...))
	if _, err := OpenWriter(dir, 110, small()); err == nil {
		t.Error("a sealed generation was opened for writing")
	}
}

func TestMakeRow(t *testing.T) {
	s := Sample{IDs: []uint32{1, 2, 3, 4}, Mask: []byte{0, 1, 0, 1}}
	r := MakeRow(&s)
	// sha256sum of 01000000020000000300000004000000 and of the same with 00010001 behind it.
	want := Row{Length: 4, Supervised: 2, First: 1, Last: 4}
	copy(want.Tokens[:], unhex(t, "cf97adeedb59e05bfd73a2b4c2a88857"))
	copy(want.Content[:], unhex(t, "874199cf7f2795f45dfe2c329bbfb71a"))
	if r != want {
		t.Errorf("row %+v, want %+v", r, want)
	}
	flipped := s
	flipped.Mask = []byte{0, 1, 1, 1}
	f := MakeRow(&flipped)
	if f.Tokens != r.Tokens || f.Content == r.Content {
		t.Error("another mask must change Content and leave Tokens")
	}
	if e := MakeRow(&Sample{IDs: []uint32{1}, Mask: []byte{0}}); e.First != 0 || e.Last != 0 || e.Supervised != 0 {
		t.Errorf("unsupervised row %+v", e)
	}
}

// TestCrashAtEveryPoint fails at each point in turn, opens again at the
// cursor and goes on: the outcome must be that of an undisturbed run.
func TestCrashAtEveryPoint(t *testing.T) {
	all := makeSamples(1, 0, 60)
	points := []fault.Point{fault.SamplesBeforeBatch, fault.SamplesAfterBatch, fault.SamplesAfterIndex}
	for _, p := range points {
		for hit := int64(1); hit <= 3; hit++ {
			dir := filepath.Join(t.TempDir(), "000001")
			var cursor int64
			o := small()
			o.FS = &fsx.FS{Faults: fault.New(p, hit)}
			w := mustWriter(t, dir, 0, o)
			for cursor < 60 {
				err := w.Append(context.Background(), all[cursor:cursor+20])
				if errors.Is(err, fault.ErrInjected) {
					if err := w.Append(context.Background(), all[:1]); err == nil {
						t.Fatalf("%s: the writer goes on after a failure", p)
					}
					if err := w.Close(); err != nil {
						t.Fatal(err)
					}
					w = mustWriter(t, dir, cursor, small())
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				cursor += 20
			}
			if err := w.Seal(context.Background()); err != nil {
				t.Fatalf("%s hit %d: %v", p, hit, err)
			}
			checkAll(t, dir, all)
		}
	}
}

// TestKilledWriter copies a generation while its writer is open, which is what
// kill -9 leaves, and reads the copy.
func TestKilledWriter(t *testing.T) {
	dir, copied := filepath.Join(t.TempDir(), "000001"), filepath.Join(t.TempDir(), "000001")
	all := makeSamples(1, 0, 60)
	w := mustWriter(t, dir, 0, small())
	mustAppend(t, w, all)
	copyTree(t, dir, copied)
	checkAll(t, copied, all)
	checkAll(t, copied, all[:40]) // the ledger may count fewer

	if _, err := Open(dir, 60, small()); err == nil {
		t.Error("a generation was opened for reading under its live writer")
	}
	again := filepath.Join(t.TempDir(), "000001")
	copyTree(t, dir, again)
	w2 := mustWriter(t, again, 40, small())
	mustAppend(t, w2, all[40:])
	if err := w2.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkAll(t, again, all)
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o777)
		}
		return copySparse(path, filepath.Join(to, rel))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// copySparse copies a file and keeps its holes: Badger's active logs are
// mostly hole.
func copySparse(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	for off := int64(0); ; {
		from, err := unix.Seek(int(in.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break // only hole from here on
		}
		if err != nil {
			return err
		}
		if off, err = unix.Seek(int(in.Fd()), from, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, from), io.NewSectionReader(in, from, off-from)); err != nil {
			return err
		}
	}
	return out.Truncate(st.Size())
}

// TestSwallowedErrorPoisons: an ERROR line of Badger fails every later call.
func TestSwallowedErrorPoisons(t *testing.T) {
	tell := make(chan error, 1)
	o := small()
	o.Fail = func(err error) { tell <- err }
	w := mustWriter(t, filepath.Join(t.TempDir(), "000001"), 0, o)
	mustAppend(t, w, makeSamples(1, 0, 5))
	// Who reports the error is kept from going on.
	go w.poison.Errorf("Error while curlf sync: %v\n", errors.New("no space left on device"))
	<-w.poison.ch
	told := <-tell
	err := w.Append(context.Background(), makeSamples(1, 5, 5))
	if err == nil || told == nil || !errors.Is(err, told) {
		t.Fatalf("Append: %v, told: %v", err, told)
	}
	if !errors.Is(err, ErrAbandoned) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Append: %v, want it to tell a full disk, and that the database is out of use", err)
	}
	if w.Rows() != 5 {
		t.Errorf("%d rows count, want 5", w.Rows())
	}
	if err := w.Seal(context.Background()); err == nil {
		t.Error("a poisoned generation was sealed")
	}
	if err := w.Close(); !errors.Is(err, told) {
		t.Errorf("Close: %v, want the swallowed error", err)
	}
}

func TestGuardStopsBeforeWriting(t *testing.T) {
	full := errors.New("disk full")
	dir := filepath.Join(t.TempDir(), "000001")
	calls, need := 0, int64(0)
	o := small()
	o.Guard = func(n int64) error {
		if calls++; calls == 3 {
			need = n
			return full
		}
		return nil
	}
	w := mustWriter(t, dir, 0, o)
	all := makeSamples(1, 0, 20)
	mustAppend(t, w, all[:10])
	if err := w.Append(context.Background(), all[10:]); !errors.Is(err, full) {
		t.Fatalf("error %v, want the guard's", err)
	}
	if need < 4*memtable(32<<20) {
		t.Errorf("asked for %d bytes only", need)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	checkAll(t, dir, all[:10])
}

func TestOrderOfDurability(t *testing.T) {
	var ops []string
	o := small()
	synced := map[string]bool{} // Badger's files
	o.FS = &fsx.FS{Trace: func(op fsx.Op) {
		if name := filepath.Base(op.Path); filepath.Base(filepath.Dir(op.Path)) == dbName {
			synced[name] = synced[name] || op.Kind == fsx.OpSync
			return
		}
		ops = append(ops, fmt.Sprint(op.Kind, " ", filepath.Base(op.Path)))
	}}
	w := mustWriter(t, filepath.Join(t.TempDir(), "000001"), 0, o)
	ops = nil
	mustAppend(t, w, makeSamples(1, 0, 3))
	if d := cmp.Diff([]string{"dirsync db", "write index.rows", "fsync index.rows"}, ops); d != "" {
		t.Errorf("append (-want +got):\n%s", d)
	}
	ops = nil
	if err := w.Seal(context.Background()); err != nil {
		t.Fatal(err)
	}
	want := []string{"close index.rows", "dirsync db"}
	for _, name := range []string{"db.json", "SEALED"} {
		want = append(want, "create "+name+".tmp", "write "+name+".tmp", "fsync "+name+".tmp", "close "+name+".tmp", "rename "+name, "dirsync 000001")
	}
	if d := cmp.Diff(want, ops); d != "" {
		t.Errorf("seal (-want +got):\n%s", d)
	}
	for _, name := range []string{"MANIFEST", "000001.vlog"} {
		if !synced[name] {
			t.Errorf("%s is not synced before the seal: %v", name, synced)
		}
	}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	var b []byte
	if _, err := fmt.Sscanf(s, "%x", &b); err != nil {
		t.Fatal(err)
	}
	return b
}
