package fault

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func env(spec, hits string) func(string) string {
	return func(key string) string {
		return map[string]string{"EAGLEBATCH_FAULT": spec, "EAGLEBATCH_FAULT_HITS": hits}[key]
	}
}

func TestNothingArmed(t *testing.T) {
	s, err := FromEnv(env("", ""))
	if s != nil || err != nil {
		t.Fatalf("got %v, %v", s, err)
	}
	if err := s.Hit(LedgerAfterCommit); err != nil {
		t.Errorf("a nil set fires: %v", err)
	}
}

func TestFiresOnceAtItsHit(t *testing.T) {
	for _, tc := range []struct {
		spec string
		want []int // hits of the sequence below that fail, from 0
	}{
		{"blob.before-sync:1:err", []int{0}},
		{"blob.before-sync:2:err", []int{2}},
		{"blob.before-sync:3:err", nil},
		{"*:2:err", []int{1}},
		{"*:4:err", nil},
	} {
		s, err := FromEnv(env(tc.spec, ""))
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for i, p := range []Point{BlobBeforeSync, BlobAfterRename, BlobBeforeSync} {
			if err := s.Hit(p); err != nil {
				got = append(got, i)
				if !errors.Is(err, ErrInjected) || !strings.Contains(err.Error(), string(p)) {
					t.Errorf("%s: the error does not name its point: %v", tc.spec, err)
				}
			}
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: %s", tc.spec, d)
		}
	}
}

func TestRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, spec := range []string{"blob.before-sync", "blob.before-sync:0", "blob.before-sync:x", "blob.before-sync:1:halt", "blob.nowhere:1", "a:1:kill:2"} {
		if _, err := FromEnv(env(spec, "")); err == nil || !strings.Contains(err.Error(), "EAGLEBATCH_FAULT") {
			t.Errorf("%q: %v", spec, err)
		}
	}
}

func TestHitsAreRecorded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hits")
	s, err := FromEnv(env("", path))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Point{BlobBeforeSync, BlobBeforeSync, SealAfterCommit} {
		if err := s.Hit(p); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "blob.before-sync\nblob.before-sync\nseal.after-commit\n"; string(b) != want {
		t.Errorf("got %q, want %q", b, want)
	}
}

// TestKill runs itself as a child that is to die.
func TestKill(t *testing.T) {
	if os.Getenv("EAGLEBATCH_FAULT") != "" {
		s, err := FromEnv(os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		t.Fatalf("still alive: %v", s.Hit(GCAfterTrash))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "EAGLEBATCH_FAULT=gc.after-trash:1")
	err := cmd.Run()
	var x *exec.ExitError
	if !errors.As(err, &x) {
		t.Fatalf("the child ended with %v", err)
	}
	if ws, ok := x.Sys().(syscall.WaitStatus); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the child ended with %v", err)
	}
}

// TestStop: a child stands still at its point, and goes on when it is let.
func TestStop(t *testing.T) {
	if os.Getenv("EAGLEBATCH_FAULT") != "" {
		s, err := FromEnv(os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Hit(GCAfterTrash); err != nil {
			t.Fatal(err)
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestStop$")
	cmd.Env = append(os.Environ(), "EAGLEBATCH_FAULT=gc.after-trash:1:stop")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if info.Code != 5 { // CLD_STOPPED
		t.Errorf("the child did not stop: code %d", info.Code)
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGCONT), cmd.Wait()); err != nil {
		t.Errorf("the child did not go on: %v", err)
	}
}

func TestPointsAreListedOnce(t *testing.T) {
	all := Points()
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d points of %d are different", n, len(all))
	}
	src, err := os.ReadFile("points.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(src), " Point = \""); n != len(all) {
		t.Errorf("%d constants, but Points lists %d", n, len(all))
	}
}
