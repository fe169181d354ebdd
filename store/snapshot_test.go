package store_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// held starts a child that opens dir, counts to 12 and stays.
func held(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	cmd := command(dir, "STORE_TEST_STAY=1")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // ended already, where the test did it
		_ = cmd.Wait()
	})
	for sc := bufio.NewScanner(pipe); sc.Scan(); {
		if sc.Text() == "12" {
			return cmd
		}
	}
	t.Fatal("the child ended")
	return nil
}

func TestOneWriter(t *testing.T) {
	dir := emptyWorkspace(t)
	cmd := held(t, dir)
	for call, fn := range map[string]func() error{
		"Open":            func() error { _, err := store.Open(t.Context(), dir, store.Options{}); return err },
		"Init":            func() error { _, err := store.Init(t.Context(), dir, store.Options{}); return err },
		"RebuildManifest": func() error { return store.RebuildManifest(t.Context(), dir, store.Options{}) },
		"RebuildLog":      func() error { return store.RebuildLog(t.Context(), dir, store.Options{}) },
	} {
		err := fn()
		var in *store.InUseError
		if !errors.Is(err, store.ErrInUse) || !errors.As(err, &in) {
			t.Fatalf("%s: error %v, want in use", call, err)
		}
		if in.PID != cmd.Process.Pid || in.Command != "child" || in.BootID == "" || in.Started.IsZero() {
			t.Errorf("%s: holder %+v, want pid %d", call, in, cmd.Process.Pid)
		}
		if want := fmt.Sprintf("pid %d (child)", in.PID); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: error %q does not say %q and where", call, err, want)
		}
	}
	s, err := store.Inspect(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := count(s); n != 12 || err != nil {
		t.Errorf("snapshot counts %d, error %v", n, err)
	}
	if !s.Live || s.Holder.PID != cmd.Process.Pid || s.Seq != 13 || s.Torn != 0 {
		t.Errorf("snapshot %+v, want live, held by %d, at step 13", s, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if s, err := store.Inspect(dir); err != nil || s.Live {
		t.Errorf("after kill: live %v, error %v", s.Live, err)
	}
	w := storetest.MustOpen(t, dir)
	if n := mustCount(t, w); n != 12 {
		t.Errorf("count %d, want 12", n)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := store.Inspect(dir); err != nil || s.Live {
		t.Errorf("after close: live %v, error %v", s.Live, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "run.lock")); err != nil {
		t.Errorf("the lock file is to stay: %v", err)
	}
}

func TestLongCommand(t *testing.T) {
	dir := emptyWorkspace(t)
	w, err := store.Open(t.Context(), dir, store.Options{Command: strings.Repeat("x", 5000), Reserve: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if s, err := store.Inspect(dir); err != nil || !s.Live || s.Holder.PID != os.Getpid() {
		t.Errorf("holder %+v, error %v", s.Holder, err)
	}
}

// TestSnapshotDuringWrites: a snapshot shows whole steps, never goes back, and
// never keeps a writer out.
func TestSnapshotDuringWrites(t *testing.T) {
	dir := emptyWorkspace(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer func() { close(stop); wg.Wait() }()
	wg.Go(func() {
		last := 0
		for looks := 0; ; looks++ {
			select {
			case <-stop:
				if looks == 0 {
					t.Error("never looked")
				}
				return
			default:
			}
			s, err := store.Inspect(dir)
			if err != nil {
				t.Error(err)
				return
			}
			n, err := count(s)
			if err != nil || n < last {
				t.Errorf("count %d after %d, error %v", n, last, err)
				return
			}
			last = n
		}
	})
	ballast := make([]byte, 1<<20) // makes it compact now and then
	n := 0
	for range 5 {
		w := storetest.MustOpen(t, dir)
		for range 5 {
			n++
			update(t, w, func(tx *store.Tx) error {
				ballast[n]++
				return errors.Join(setCount(tx, n), tx.PutValue("ballast", ballast))
			})
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSnapshotChangesNothing: with read permission only, as another user, and
// without a trace.
func TestSnapshotChangesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	w := storetest.MustInit(t)
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 7) })
	if err := w.WriteStatus(store.Status{Phase: "x"}); err != nil {
		t.Fatal(err)
	}
	// The parent of a test's directory is private.
	if err := os.Chmod(filepath.Dir(w.Dir()), 0o755); err != nil {
		t.Fatal(err)
	}
	before := listing(t, w.Dir())
	runtime.LockOSThread() // the user of files is the thread's
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(65534); err != nil {
		t.Fatal(err)
	}
	s, err := store.Inspect(w.Dir())
	_, werr := os.OpenFile(logPath(w.Dir()), os.O_RDWR, 0)
	if e := unix.Setfsuid(0); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(werr, os.ErrPermission) {
		t.Fatalf("the test has no other user: %v", werr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n, err := count(s); n != 7 || err != nil || !s.Live || s.Status == nil {
		t.Errorf("count %d, error %v, %+v", n, err, s)
	}
	if after := listing(t, w.Dir()); after != before {
		t.Errorf("files before:\n%safter:\n%s", before, after)
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	ents, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range ents {
		st, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, st.Name(), st.Size(), st.ModTime(), st.Mode())
	}
	return b.String()
}

func TestStatus(t *testing.T) {
	var ops []fsx.Kind
	w := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Trace: func(o fsx.Op) { ops = append(ops, o.Kind) }})
	update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
	ops = nil
	from := time.Now()
	if err := w.WriteStatus(store.Status{Phase: "merge", Done: 3, Rate: map[string]float64{"samples": 1.5}}); err != nil {
		t.Fatal(err)
	}
	for _, k := range ops {
		if k == fsx.OpSync || k == fsx.OpSyncDir {
			t.Errorf("status was fsynced: %v", ops)
		}
	}
	s, err := store.Inspect(w.Dir())
	if err != nil || s.Status == nil || s.StatusErr != nil {
		t.Fatalf("snapshot %+v, error %v", s, err)
	}
	st := s.Status
	if st.Schema != 1 || st.PID != os.Getpid() || st.Command != "test" || st.Seq != 2 || st.Done != 3 || st.Rate["samples"] != 1.5 || st.Updated.Before(from) {
		t.Errorf("status %+v", st)
	}
	if !s.AsOf.Equal(st.Updated) {
		t.Errorf("as of %v, the status is of %v", s.AsOf, st.Updated)
	}
	for _, bad := range []string{"", "{", "[]", "\x00\x00"} {
		write(t, filepath.Join(w.Dir(), "status.json"), []byte(bad))
		s, err := store.Inspect(w.Dir())
		if err != nil || s.Status != nil || !errors.Is(s.StatusErr, store.ErrCorrupt) {
			t.Errorf("status %q: snapshot %+v, error %v", bad, s, err)
		}
	}
}

// TestMarkerAndStatusAreJSON holds the field names that others read.
func TestMarkerAndStatusAreJSON(t *testing.T) {
	w := storetest.MustInit(t)
	if err := w.WriteStatus(store.Status{Clean: true}); err != nil {
		t.Fatal(err)
	}
	for file, keys := range map[string][]string{
		"EAGLEBATCH":  {"root_id", "format"},
		"run.lock":    {"pid", "boot_id", "started", "command"},
		"status.json": {"schema", "pid", "boot_id", "phase", "done", "total", "unit", "rate", "eta_seconds", "seq", "updated", "clean", "exit_code"},
	} {
		var m map[string]any
		if err := json.Unmarshal(read(t, filepath.Join(w.Dir(), file)), &m); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, k := range keys {
			if _, ok := m[k]; !ok {
				t.Errorf("%s has no %q", file, k)
			}
		}
	}
}
