package store_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// TestMain lets the test binary be the writer that is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("STORE_TEST_CHILD"); dir != "" {
		if err := child(dir, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child counts up in the ledger, and says each number once it is durable. Large
// values make it compact the log now and then.
func child(dir string, out io.Writer) error {
	faults, err := fault.FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	ctx := context.Background()
	w, err := store.Open(ctx, dir, store.Options{FS: &fsx.FS{Faults: faults}, Command: "child", Reserve: 64 << 10})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "open")
	ballast := make([]byte, 1<<20)
	for range 12 {
		var n int
		err := w.Update(ctx, "count", func(tx *store.Tx) error {
			n, err = count(tx)
			if err != nil {
				return err
			}
			n++
			if os.Getenv("STORE_TEST_BALLAST") != "" {
				ballast[n]++
				if err := tx.PutValue("ballast", ballast); err != nil {
					return err
				}
			}
			return setCount(tx, n)
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, n)
	}
	if err := w.WriteStatus(store.Status{Phase: "count"}); err != nil {
		return err
	}
	if os.Getenv("STORE_TEST_STAY") != "" {
		time.Sleep(time.Hour)
	}
	if err := w.ReleaseReserve(); err != nil {
		return err
	}
	return w.Close()
}

// setCount puts n under three keys, which only ever change together.
func setCount(tx *store.Tx, n int) error {
	v := []byte(strconv.Itoa(n))
	return errors.Join(tx.PutValue("a", v), tx.PutValue("b", v), tx.PutValue("c", v))
}

// count reads n back and fails where the three keys differ.
func count(r store.Reader) (int, error) {
	a, ok, err := r.Value("a")
	if err != nil || !ok {
		return 0, err
	}
	for _, k := range []string{"b", "c"} {
		v, _, err := r.Value(k)
		if err != nil || !bytes.Equal(a, v) {
			return 0, fmt.Errorf("half a step: a is %s, %s is %s, error %v", a, k, v, err)
		}
	}
	return strconv.Atoi(string(a))
}

func mustCount(t *testing.T, w *store.Workspace) (n int) {
	t.Helper()
	err := w.View(func(r store.Reader) (err error) {
		n, err = count(r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func command(dir string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, "STORE_TEST_CHILD="+dir)...)
	cmd.Stderr = os.Stderr
	return cmd
}

// emptyWorkspace makes a workspace and closes it.
func emptyWorkspace(t *testing.T) string {
	t.Helper()
	w := storetest.MustInit(t)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.Dir()
}

var ledgerPoints = []fault.Point{
	fault.LedgerBeforeAppend, fault.LedgerAfterAppend, fault.LedgerAfterCommit,
	fault.LedgerCompact, fault.StatusBeforeRename, fault.ReserveBeforeUnlink,
}

func TestKilledAtEveryPoint(t *testing.T) {
	for _, p := range ledgerPoints {
		for _, at := range []int{1, 12} {
			single := p == fault.LedgerCompact || p == fault.StatusBeforeRename || p == fault.ReserveBeforeUnlink
			if single && at > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s:%d", p, at), func(t *testing.T) {
				dir := emptyWorkspace(t)
				cmd := command(dir, fmt.Sprintf("EAGLEBATCH_FAULT=%s:%d:kill", p, at), "STORE_TEST_BALLAST=1")
				out, err := cmd.Output()
				if err == nil || err.Error() != "signal: killed" {
					t.Fatalf("child: %v, want it killed", err)
				}
				said := lastNumber(t, out)
				w := storetest.MustOpen(t, dir)
				n := mustCount(t, w)
				if n != said && n != said+1 {
					t.Errorf("said %d, found %d", said, n)
				}
				if carried := p == fault.LedgerAfterAppend || p == fault.LedgerAfterCommit; carried && n != said+1 {
					t.Errorf("the durable line of step %d was lost", said+1)
				}
				noTemp(t, dir)
			})
		}
	}
}

func lastNumber(t *testing.T, out []byte) int {
	t.Helper()
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		t.Fatal("the child said nothing")
	}
	if len(lines) == 1 {
		return 0
	}
	n, err := strconv.Atoi(lines[len(lines)-1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func noTemp(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*"+fsx.TempSuffix))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

// TestKilledAnywhere kills the writer at moments of its own choosing.
func TestKilledAnywhere(t *testing.T) {
	dir := emptyWorkspace(t)
	said := 0
	for i := range 8 {
		cmd := command(dir)
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(pipe)
		for lines := 0; lines < i+1 && sc.Scan(); lines++ {
			if n, err := strconv.Atoi(sc.Text()); err == nil {
				said = n
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for sc.Scan() {
			if n, err := strconv.Atoi(sc.Text()); err == nil {
				said = n
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Log("the child ended before it was killed")
		}
		w := storetest.MustOpen(t, dir)
		if n := mustCount(t, w); n != said && n != said+1 {
			t.Fatalf("said %d, found %d", said, n)
		} else {
			said = n
		}
		if err := w.CheckLedger(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailedStepEndsTheLedger: after a failure in the middle of a step nothing
// more is written, and opening anew finds the step whole or not at all.
func TestFailedStepEndsTheLedger(t *testing.T) {
	tests := []struct {
		p      fault.Point
		usable bool // afterwards
		after  int  // the count found by the next Open
	}{
		{fault.LedgerBeforeAppend, true, 1},
		{fault.LedgerAfterAppend, false, 2},
		{fault.LedgerAfterCommit, false, 2},
	}
	for _, tt := range tests {
		t.Run(string(tt.p), func(t *testing.T) {
			w := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Faults: fault.New(tt.p, 2)})
			update(t, w, func(tx *store.Tx) error { return setCount(tx, 1) })
			err := w.Update(t.Context(), "second", func(tx *store.Tx) error { return setCount(tx, 2) })
			if !errors.Is(err, fault.ErrInjected) || !strings.Contains(err.Error(), "second") {
				t.Fatalf("error %v, want the injected one, and what it failed", err)
			}
			err = w.Update(t.Context(), "third", func(tx *store.Tx) error { return tx.PutValue("d", []byte("3")) })
			if usable := err == nil; usable != tt.usable {
				t.Errorf("update after the failure: %v", err)
			} else if !usable && !errors.Is(err, fault.ErrInjected) {
				t.Errorf("update after the failure: %v, want the first error", err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w = storetest.MustOpen(t, w.Dir())
			if n := mustCount(t, w); n != tt.after {
				t.Errorf("count %d, want %d", n, tt.after)
			}
		})
	}
}

func TestFailedCompactionEndsTheLedger(t *testing.T) {
	w := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Faults: fault.New(fault.LedgerCompact, 1)})
	big := make([]byte, 1<<20)
	var err error
	for i := 1; err == nil && i < 20; i++ {
		err = w.Update(t.Context(), "grow", func(tx *store.Tx) error {
			return errors.Join(tx.PutValue("big", big), setCount(tx, i))
		})
	}
	if !errors.Is(err, fault.ErrInjected) {
		t.Fatalf("error %v, want the injected one", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	noTemp(t, w.Dir())
	w = storetest.MustOpen(t, w.Dir())
	if n := mustCount(t, w); n < 6 {
		t.Errorf("count %d: steps lost", n)
	}
}

// TestCarriedStepIsDurableFirst: a line that a killed writer left is read from
// the page cache; it is synced before manifest.db relies on it.
func TestCarriedStepIsDurableFirst(t *testing.T) {
	w := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Faults: fault.New(fault.LedgerAfterAppend, 1)})
	if err := w.Update(t.Context(), "x", func(tx *store.Tx) error { return setCount(tx, 1) }); !errors.Is(err, fault.ErrInjected) {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var ops []string
	w = storetest.MustInitFS(t, w.Dir(), &fsx.FS{Trace: func(o fsx.Op) { ops = append(ops, string(o.Kind)+" "+filepath.Base(o.Path)) }})
	sync, commit := slices.Index(ops, "fsync checkpoints.jsonl"), slices.Index(ops, "commit manifest.db")
	if sync < 0 || commit < sync {
		t.Errorf("the log is not synced before the step is carried over: %v", ops)
	}
	if n := mustCount(t, w); n != 1 {
		t.Errorf("count %d, want 1", n)
	}
}
