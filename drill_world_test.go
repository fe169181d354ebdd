package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"eaglebatch/store/genindex"
)

// standing is a child that stands still at a point.
type standing struct {
	cmd  *exec.Cmd
	text bytes.Buffer // stdout and stderr
}

// standAt starts a child and waits until it stands at the hit-th hit of point.
func (s site) standAt(t *testing.T, point string, args ...string) *standing {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	c := &standing{cmd: s.command(ctx, []string{"EAGLEBATCH_FAULT=" + point + ":stop"}, args...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.text, &c.text
	must(t, c.cmd.Start())
	if !stopped(t, c.cmd.Process.Pid) {
		t.Fatalf("the child ended before %s: %v %s", point, c.cmd.Wait(), c.text.String())
	}
	return c
}

// stopped waits until the child stops, which it reports, or ends. It takes
// nothing from a later Wait.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	const cldStopped = 5
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return info.Code == cldStopped
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

// goOn lets the child go on, after signals that it then finds, and waits for its
// end.
func (c *standing) goOn(t *testing.T, signals ...syscall.Signal) ending {
	t.Helper()
	for _, sig := range append(signals, syscall.SIGCONT) {
		must(t, c.cmd.Process.Signal(sig))
	}
	r := ending{}
	if err := c.cmd.Wait(); err != nil {
		r.code = exitCodeOf(err)
	}
	r.err = c.text.String()
	return r
}

// same fails unless the site has the files of the undisturbed run.
func (s site) same(t *testing.T, want map[string]string) {
	t.Helper()
	s.ok(t, "check", "--full")
	if d := cmp.Diff(want, s.files(t)); d != "" {
		t.Errorf("files differ from the undisturbed run (-want +got):\n%s", d)
	}
}

// undisturbed runs a job and returns its files.
func undisturbed(t *testing.T, dir string) map[string]string {
	t.Helper()
	s := newSite(t, dir)
	s.ok(t, "run")
	return s.files(t)
}

// TestDrillSecondProcess: while a run stands in the middle, every other command
// that writes ends with 11 and names it, and those that look answer. It never
// notices.
func TestDrillSecondProcess(t *testing.T) {
	dir := scratch(t)
	want := undisturbed(t, filepath.Join(dir, "reference"))
	s := newSite(t, filepath.Join(dir, "site"))
	c := s.standAt(t, "blob.after-commit:2", "run")
	var sum tally
	holder := fmt.Sprintf("pid %d (run)", c.cmd.Process.Pid)
	for _, args := range [][]string{{"run"}, {"merge"}, {"shuffle"}, {"plan"}, {"extract"}, {"gc", "--apply"}, {"check", "--rebuild-manifest"}, {"export", "--to", "jsonl", "--out", "o"}} {
		r := s.run(t, nil, args...)
		if sum.tried++; r.code != 11 || !strings.Contains(r.err, holder) || !strings.Contains(r.err, "hint: ") {
			t.Errorf("%v: exit code 11 and %q wanted: %v", args, holder, r)
		}
	}
	for _, args := range [][]string{{"stat", "--json"}, {"cat", "2:0"}, {"check", "--full"}, {"audit"}, {"generations"}} {
		r := s.run(t, nil, args...)
		if sum.tried++; r.code != 0 || args[0] == "stat" && !strings.Contains(r.out, `"live": true`) {
			t.Errorf("%v while a run is at work: %v", args, r)
		}
	}
	if r := c.goOn(t); r.code != 0 {
		t.Errorf("the first run: %v", r)
	}
	s.same(t, want)
	sum.survived = sum.tried
	sum.report(t, "world: two processes")
}

// TestDrillSignals: a first SIGINT or SIGTERM ends a run in order with 130, at
// whatever point, and --on-stop hears of it; SIGHUP does not; the time limit
// ends it with 5. The same command goes on each time.
func TestDrillSignals(t *testing.T) {
	dir := scratch(t)
	want := undisturbed(t, filepath.Join(dir, "reference"))
	var sum tally
	for _, point := range []string{"merge.after-dataset:1", "shuffle.after-order:1", "plan.after-index:1", "blob.before-sync:1", "blob.after-commit:2", "seal.before-manifest:1"} {
		for _, signals := range [][]syscall.Signal{{syscall.SIGTERM}, {syscall.SIGINT}, {syscall.SIGINT, syscall.SIGTERM}, {syscall.SIGHUP}} {
			sum.tried++
			s := newSite(t, filepath.Join(dir, strings.ReplaceAll(point, ":", "-")+fmt.Sprint(signals)))
			must(t, os.WriteFile(filepath.Join(s.dir, "hook"), []byte("#!/bin/sh\nprintf '%s %s' \"$1\" \"$2\" > stop.txt\n"), 0o777))
			r := s.standAt(t, point, "run", "--on-stop", "./hook").goOn(t, signals...)
			// Open blobs are finished, and with the last of them the job is.
			hup, last := signals[0] == syscall.SIGHUP, strings.HasPrefix(point, "blob") || strings.HasPrefix(point, "seal")
			if !(r.code == 130 && !hup || r.code == 0 && (hup || last) && strings.Contains(r.err, "is sealed")) {
				t.Errorf("%v at %s: %v", signals, point, r)
			}
			b, err := os.ReadFile(filepath.Join(s.dir, "stop.txt"))
			if hook := fmt.Sprint(r.code, " ", s.work("status.json")); err != nil || string(b) != hook {
				t.Errorf("%v at %s: --on-stop got %q, want %q: %v", signals, point, b, hook, err)
			}
			s.ok(t, "run")
			s.same(t, want)
			must(t, os.RemoveAll(s.dir))
		}
	}
	s := newSite(t, filepath.Join(dir, "limit"))
	r := s.run(t, nil, "run", "--max-duration", "1ms", "--on-stop", "touch stopped-$EAGLEBATCH_EXIT_CODE")
	if sum.tried++; r.code != 5 || !exists(filepath.Join(s.dir, "stopped-5")) {
		t.Errorf("--max-duration: %v", r)
	}
	s.ok(t, "run")
	s.same(t, want)
	sum.survived = sum.tried
	sum.report(t, "world: signals and limits")
}

// TestDrillLease: gc leaves a generation alone that somebody reads, in Go or in
// Python, and takes it once the reader is gone.
func TestDrillLease(t *testing.T) {
	dir := scratch(t)
	begin := newSite(t, filepath.Join(dir, "begin"))
	twoGenerations(t, begin)
	gone := func(s site) bool { return !exists(s.work("generations/000002")) }
	var sum tally
	try := func(t *testing.T, s site, release func()) {
		r := s.ok(t, "gc", "--apply")
		if sum.tried++; gone(s) {
			t.Fatalf("gc took a generation that is being read: %v", r)
		}
		r = s.run(t, nil, "gc", "--apply", "--now", "--name", "gen-000002", "--yes", "gen-000002")
		if sum.tried++; r.code == 0 || gone(s) || !strings.Contains(r.err, "lease") {
			t.Fatalf("gc of a named generation that is being read: %v", r)
		}
		release()
		r = s.ok(t, "gc", "--apply")
		if sum.tried++; !gone(s) {
			t.Errorf("gc keeps a generation that nobody reads: %v", r)
		}
		s.ok(t, "check", "--full")
	}
	t.Run("Go", func(t *testing.T) {
		s := copySite(t, begin, filepath.Join(dir, "go"))
		lease, err := genindex.Hold(s.work("generations/000002"))
		must(t, err)
		try(t, s, func() { must(t, lease.Close()) })
		if _, err := genindex.Hold(s.work("generations/000002")); err == nil {
			t.Error("a lease of what is gone")
		}
	})
	t.Run("Python", func(t *testing.T) {
		python := os.Getenv("EAGLEBATCH_PYTHON")
		if python == "" {
			t.Skip("needs EAGLEBATCH_PYTHON, a Python with numpy and lz4")
		}
		s := copySite(t, begin, filepath.Join(dir, "python"))
		lib, err := filepath.Abs("extract/export/python")
		must(t, err)
		cmd := exec.Command(python, "-c", "import sys, eaglebatch\nd = eaglebatch.Dataset(sys.argv[1], synthetic=True)\nd[0].states(8)\nprint('reading', flush=True)\nsys.stdin.read()",
			s.work("generations/000002"))
		cmd.Env = append(os.Environ(), "PYTHONPATH="+lib)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		must(t, err)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if n, err := out.Read(make([]byte, 100)); n == 0 {
			t.Fatalf("the reader did not start: %v, %v", err, cmd.Wait())
		}
		try(t, s, func() {
			must(t, in.Close())
			must(t, cmd.Wait())
		})
	})
	sum.survived = sum.tried
	sum.report(t, "world: leases against gc")
}

// longPath makes a directory below dir whose path has n bytes.
func longPath(t *testing.T, dir string, n int) string {
	t.Helper()
	for n-len(dir) > 1 {
		k := min(200, n-len(dir)-1)
		if rest := n - len(dir) - 1 - k; rest == 1 {
			k--
		}
		dir = filepath.Join(dir, strings.Repeat("d", k))
	}
	return dir
}

// TestDrillPaths: names with spaces, quotes and other letters, a workspace
// behind a symbolic link, and paths about as long as the system takes.
func TestDrillPaths(t *testing.T) {
	dir := scratch(t)
	want := undisturbed(t, filepath.Join(dir, "reference"))
	var sum tally
	for _, name := range []string{"with  spaces", "it's \"quoted\" $HOME `x`", "Übung 数据", "-c", "a:b,c=d;e&f", longPath(t, "l", 3700-len(dir))} {
		t.Run(strconv.Quote(name[:min(len(name), 30)]), func(t *testing.T) {
			s := newSite(t, filepath.Join(dir, "names", name))
			s.ok(t, "run")
			s.same(t, want)
			s.ok(t, "export", "--to", "jsonl", "--out", "out here")
			s.ok(t, "cat", "2:0")
			sum.tried++
		})
	}
	t.Run("behind a symbolic link", func(t *testing.T) {
		s := newSite(t, filepath.Join(dir, "linked"))
		must(t, os.MkdirAll(filepath.Join(dir, "elsewhere", "work"), 0o777))
		must(t, os.Symlink(filepath.Join(dir, "elsewhere", "work"), s.work()))
		twoGenerations(t, s)
		s.ok(t, "gc", "--apply")
		s.ok(t, "gc", "--apply")
		if exists(s.work("generations/000002")) || !exists(s.work("generations/000003")) {
			t.Error("gc through the link did not take the older generation only")
		}
		s.ok(t, "check", "--full")
		s.ok(t, "stat", "--work", filepath.Join(dir, "elsewhere", "work"))
		sum.tried++
	})
	t.Run("too long", func(t *testing.T) {
		s := newSite(t, filepath.Join(dir, "short"))
		s.configure(t, strings.Replace(drillConfig, "work: ./work", "work: ./"+longPath(t, "w", 4080-len(s.dir)), 1))
		r := s.run(t, nil, "run")
		if r.code != 1 || !strings.Contains(r.err, "file name too long") {
			t.Errorf("a path that is too long: %v", r)
		}
		sum.tried++
	})
	sum.survived = sum.tried
	sum.report(t, "world: paths")
}
