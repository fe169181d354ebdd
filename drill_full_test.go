package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"

	"golang.org/x/sys/unix"
)

// TestDrillFullDisk runs in volumes of all sizes from one that does not hold an
// empty workspace to one that is just too small, fills what is left, looks with
// stat, cleans up with gc, and goes on once there is room. Then others fill the
// volume in the middle of a run.
func TestDrillFullDisk(t *testing.T) {
	needDrills(t, "mkfs.ext4", "mount")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	for _, fstype := range []string{"tmpfs", "ext4"} {
		t.Run(fstype, func(t *testing.T) {
			v := newFullVolume(t, fstype)
			v.sizes(t).report(t, "full disk on "+fstype)
			v.reclaim(t).report(t, "gc on a full "+fstype)
			v.eaten(t).report(t, "gc while others fill "+fstype)
			v.others(t).report(t, "others fill "+fstype)
			if !slices.Contains(v.hits(t), fault.ReserveBeforeUnlink) {
				t.Error("the reserve was never given up: the drill proves nothing")
			}
		})
	}
}

// fullVolume is a filesystem of its own with a site in it, whose states take
// more than its merge does.
type fullVolume struct {
	s        site
	dir, out string // mount point; what must not lie on it
	want     map[string]string
	ops      int   // file operations of the undisturbed run
	need     int64 // bytes that it must find free
}

const (
	fullReserve = 1 << 20 // plan.reserve of the site, bytes
	fullSize    = 96 << 20
)

func newFullVolume(t *testing.T, fstype string) *fullVolume {
	t.Helper()
	img := "none"
	options := fmt.Sprintf("size=%d", fullSize)
	if fstype == "ext4" {
		img, options = image(t, fstype, fullSize), "loop"
	}
	dir, _ := mount(t, fstype, img, options)
	v := &fullVolume{dir: dir, out: t.TempDir()}
	v.s = newSite(t, filepath.Join(dir, "site"))
	v.s.configure(t, fullConfig())
	config := filepath.Join(v.s.dir, "model", "config.json")
	b, err := os.ReadFile(config)
	must(t, err)
	must(t, os.WriteFile(config, []byte(strings.Replace(string(b), `"hidden_size":64`, `"hidden_size":2048`, 1)), 0o666))
	v.s.env = append(v.s.env, "EAGLEBATCH_FAULT_HITS="+filepath.Join(v.out, "hits"))

	empty := v.free(t)
	for _, phase := range []string{"merge", "shuffle", "plan"} {
		v.s.ok(t, phase)
	}
	v.need = empty - v.free(t) + v.stat(t).Plan.Expected + fullReserve
	v.wipe(t)
	fst := filepath.Join(v.out, "fstrace")
	if r := v.s.run(t, []string{"EAGLEBATCH_FSTRACE=" + fst}, "run"); r.code != 0 {
		t.Fatalf("undisturbed: %v", r)
	}
	v.want, v.ops = v.s.files(t), len(readTrace(t, fst, v.s.work()))
	v.wipe(t)
	return v
}

func (v *fullVolume) hits(t testing.TB) (out []fault.Point) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(v.out, "hits"))
	must(t, err)
	for l := range strings.Lines(string(b)) {
		out = append(out, fault.Point(strings.TrimSpace(l)))
	}
	return out
}

// roomFields are the fields of stat --json that say what is missing.
type roomFields struct {
	Plan *struct {
		Expected int64 `json:"expected_bytes"`
	}
	Phases  []struct{ Error string }
	Notes   []string
	Extract *struct {
		Missing int64 `json:"missing_bytes"`
	}
}

func (v *fullVolume) stat(t testing.TB) (f roomFields) {
	t.Helper()
	must(t, json.Unmarshal([]byte(v.s.ok(t, "stat", "--json").out), &f))
	return f
}

// saysMissing: it tells how much room is missing.
func (f roomFields) saysMissing() bool {
	return f.Extract != nil && f.Extract.Missing > 0 ||
		slices.ContainsFunc(f.Phases, func(p struct{ Error string }) bool { return strings.Contains(p.Error, " missing") }) ||
		slices.ContainsFunc(f.Notes, func(n string) bool { return strings.Contains(n, " missing") })
}

func (v *fullVolume) free(t testing.TB) int64 {
	t.Helper()
	sp, err := fsx.SpaceAt(v.dir)
	must(t, err)
	return sp.Free
}

func (v *fullVolume) ballast() string { return filepath.Join(v.dir, "ballast") }
func (v *fullVolume) filler() string  { return filepath.Join(v.dir, "filler") }

// wipe removes the workspace and what takes its room.
func (v *fullVolume) wipe(t testing.TB) {
	t.Helper()
	must(t, os.RemoveAll(v.s.work()))
	v.grow(t)
}

func (v *fullVolume) grow(t testing.TB) {
	t.Helper()
	must(t, errors.Join(os.RemoveAll(v.ballast()), os.RemoveAll(v.filler())))
	unix.Sync()
}

// leave takes all room but free bytes.
func (v *fullVolume) leave(t testing.TB, free int64) {
	t.Helper()
	f, err := os.Create(v.ballast())
	must(t, err)
	for n := v.free(t) - free; n > 0; n = v.free(t) - free {
		st, err := f.Stat()
		must(t, err)
		must(t, unix.Fallocate(int(f.Fd()), 0, st.Size(), min(n, 4<<20)))
	}
	must(t, f.Close())
}

// fill takes what room there is, to the last block.
func (v *fullVolume) fill() error {
	f, err := os.OpenFile(v.filler(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return nil // no room for its name
		}
		return err
	}
	for size := int64(4 << 20); err == nil; {
		var st os.FileInfo
		if st, err = f.Stat(); err != nil {
			break
		}
		err = unix.Fallocate(int(f.Fd()), 0, st.Size(), size)
		if errors.Is(err, syscall.ENOSPC) && size > 4096 {
			size, err = size/2, nil
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		_, err = f.Write(make([]byte, 8192))
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, io.ErrShortWrite) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// spread are n sizes: some around what an empty workspace takes, the rest up to
// just below what is needed.
func (v *fullVolume) spread(n int) []int64 {
	sizes := []int64{0, 4 << 10, 16 << 10, 28 << 10, 44 << 10, 64 << 10, 1 << 20}
	low, n := sizes[len(sizes)-1], n-len(sizes)
	for i := range int64(n) {
		sizes = append(sizes, low+(v.need-64<<10-low)*(i+1)/int64(n))
	}
	return sizes
}

// sizes runs in volumes that are too small.
func (v *fullVolume) sizes(t *testing.T) (c tally) {
	n := 20
	if *long {
		n = 100
	}
	codes := map[int]int{}
	for _, size := range v.spread(n) {
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		v.leave(t, size)
		codes[v.tooSmall(t, bad)]++
		v.wipe(t)
		if c.tried++; len(problems) > 0 {
			c.lost++
			t.Errorf("%d bytes free: %s", size, strings.Join(problems, "\n"))
		}
	}
	t.Logf("ended with %v (code:times); %d bytes are needed", codes, v.need)
	if codes[28] == 0 || codes[4] == 0 {
		t.Error("the sizes do not reach from a merge to a plan that have too little room")
	}
	v.leave(t, v.need+256<<10)
	if r := v.s.run(t, nil, "run"); r.code != 0 {
		t.Errorf("with all the room that is needed: %v", r)
	}
	v.wipe(t)
	c.survived = c.tried - c.lost
	return c
}

// fullConfig has large blobs, and no proofs: with one the files would be other
// ones than those of an undisturbed run.
func fullConfig() string { return strings.Replace(drillConfig, "256KiB", "4MiB, proof: 0", 1) }

// tooSmall runs where there is too little room, and again once there is more.
func (v *fullVolume) tooSmall(t *testing.T, bad complain) (code int) {
	r := v.s.run(t, nil, "run")
	if r.code != 28 && r.code != 4 {
		bad("it did not end as on a full disk: %v", r)
	}
	if !strings.Contains(r.err, "missing") && !strings.Contains(r.err, "short of it") {
		bad("the error does not say how much is missing: %v", r)
	}
	must(t, v.fill())
	before := v.s.truth(t, bad)
	if before.stat != nil {
		if s := v.stat(t); !s.saysMissing() || r.code == 4 && s.Extract.Missing == 0 {
			bad("stat does not say how much is missing: %v", v.s.run(t, nil, "stat"))
		}
		v.cleans(t, bad, "gc", "--apply")
	}
	v.grow(t)
	v.s.finishes(t, []string{"run"}, v.want, before, bad)
	return r.code
}

// cleans: gc works on the full volume, and after it more is free.
func (v *fullVolume) cleans(t *testing.T, bad complain, args ...string) {
	t.Helper()
	before := v.free(t)
	if r := v.s.run(t, nil, args...); r.code != 0 {
		bad("%v on the full disk: %v", args, r)
	}
	unix.Sync() // ext4 gives room back with its journal
	if now := v.free(t); now < before {
		bad("%v took %d bytes of a full disk", args, before-now)
	}
}

// reclaim: where a full disk holds old states, gc gives up the reserve and
// deletes them, whatever ends it first.
func (v *fullVolume) reclaim(t *testing.T) (c tally) {
	next := func() {
		v.s.configure(t, strings.Replace(fullConfig(), "[2, 4, 8]", "[1, 3, 8]", 1))
	}
	old := v.s
	v.s.ok(t, "run")
	next()
	v.s.ok(t, "run", "--redo", "plan")
	v.s.ok(t, "gc", "--apply", "--now", "--name", "gen-000002", "--yes", "gen-000002")
	want := v.s.files(t)
	for _, mode := range []string{"", "err", "kill"} {
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		v.wipe(t)
		v.s = old
		v.s.configure(t, fullConfig())
		v.s.ok(t, "run")
		next()
		v.leave(t, 8<<20)
		if r := v.s.run(t, nil, "run", "--redo", "plan"); r.code != 4 {
			bad("a plan that needs the room of old states: %v", r)
		}
		must(t, v.fill())
		before := v.s.truth(t, bad)
		args := []string{"gc", "--apply", "--now", "--name", "gen-000002", "--yes", "gen-000002", "--no-fallback"}
		if mode != "" {
			r := v.s.run(t, []string{"EAGLEBATCH_FAULT=" + string(fault.ReserveBeforeUnlink) + ":1:" + mode}, args...)
			if struck := r.signal == syscall.SIGKILL || strings.Contains(r.err, "injected fault"); !struck {
				bad("the reserve was not given up: %v", r)
			}
		}
		v.cleans(t, bad, args...)
		if n := v.free(t); n < 16<<20 {
			bad("old states are deleted and %d bytes are free", n)
		}
		v.grow(t)
		v.s.finishes(t, []string{"run"}, want, truth{seq: before.seq}, bad)
		if c.tried++; len(problems) > 0 {
			c.lost++
			t.Errorf("%s at the reserve: %s", mode, strings.Join(problems, "\n"))
		}
	}
	v.s.configure(t, fullConfig())
	v.wipe(t)
	c.survived = c.tried - c.lost
	return c
}

// others fills the volume while a child runs.
func (v *fullVolume) others(t *testing.T) (c tally) {
	n := 10
	if *long {
		n = 100
	}
	how := map[string]int{}
	for i := range n {
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		r := v.filledAfter(t, v.ops*i/n)
		switch crashed := r.signal == syscall.SIGABRT && strings.Contains(r.err, "fatal error: fault") && strings.Contains(r.err, "SIGBUS"); {
		case crashed: // a mapped file that has no block yet: nobody can answer for that
			how["SIGBUS"]++
		case r.code == 28, r.code == 4, r.code == 0:
			how[fmt.Sprint(r.code)]++
		default:
			bad("it did not end as on a full disk: %v", r)
		}
		before := v.s.truth(t, bad)
		// The others may have taken the room of the reserve too, and what the ledger
		// has of its own is taken once there is a workspace.
		if exists(v.s.work("trash")) {
			v.cleans(t, bad, "gc", "--apply")
		}
		v.grow(t)
		v.s.finishes(t, []string{"run"}, v.want, before, bad)
		v.wipe(t)
		if c.tried++; len(problems) > 0 {
			c.lost++
			t.Errorf("filled after %d operations: %s", v.ops*i/n, strings.Join(problems, "\n"))
		}
	}
	t.Logf("ended with %v", how)
	c.survived = c.tried - c.lost
	return c
}

// filledAfter runs a child and, once it has done so many file operations, takes
// every block until it has ended.
func (v *fullVolume) filledAfter(t *testing.T, ops int) ending {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	fst := filepath.Join(v.out, "fstrace")
	must(t, os.RemoveAll(fst))
	cmd := v.s.command(ctx, []string{"EAGLEBATCH_FSTRACE=" + fst}, "run")
	done := make(chan struct{})
	var r ending
	var err error
	go func() { defer close(done); r, err = finish(cmd) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Millisecond):
			b, rerr := os.ReadFile(fst)
			if rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				t.Error(rerr)
			}
			if strings.Count(string(b), "\n") >= ops {
				if err := v.fill(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if err != nil || ctx.Err() != nil {
		t.Fatalf("run: %v %v\n%v", err, ctx.Err(), r)
	}
	return r
}
