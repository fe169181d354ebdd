package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// powerOff stops a filesystem without writing its journal out, as a power cut
// does: what was not fsynced is gone.
func powerOff(dir string) error {
	const (
		shutdown   = 0x8004587d // EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
		noLogFlush = 2
	)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	how := uint32(noLogFlush)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); e != 0 {
		return e
	}
	return nil
}

// image makes a filesystem in a file.
func image(t *testing.T, fstype string, size int64) string {
	t.Helper()
	img := filepath.Join(scratch(t), fstype+".img")
	must(t, os.WriteFile(img, nil, 0o666))
	must(t, os.Truncate(img, size))
	args := map[string][]string{"ext4": {"-q", "-F", "-m", "0", img}, "xfs": {"-q", "-f", img}}[fstype] // no blocks for root alone
	if out, err := exec.Command("mkfs."+fstype, args...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s: %v %s", fstype, err, out)
	}
	return img
}

// cutsAt are the points of each scenario at which the power is cut while the
// child stands there: moments of each phase that a random one seldom meets.
func cutsAt() map[string][]string {
	return map[string][]string{
		"merge, shuffle, plan, extract, seal": {
			"samples.before-batch:2", "samples.after-batch:1", "samples.after-index:1", "merge.after-dataset:2", "samples.before-seal:1",
			"shuffle.before-order:1", "shuffle.after-order:1", "plan.before-index:1", "plan.after-index:1",
			"extract.begin:1", "blob.before-sync:1", "blob.before-rename:2", "blob.after-rename:1", "blob.after-commit:2",
			"seal.before-index:1", "seal.before-manifest:1", "seal.after-manifest:1", "seal.after-commit:1",
			"ledger.after-append:6", "ledger.after-commit:12",
		},
		"check --repair":        {"blob.after-rename:1", "seal.after-manifest:1"},
		"export":                {"export.before-rename:1", "export.after-rename:1"},
		"compaction of the log": {"ledger.compact:1"},
	}
}

// TestDrillPowerCutAtPoints cuts the power at named points of every phase.
func TestDrillPowerCutAtPoints(t *testing.T) {
	needDrills(t, "mkfs.ext4", "mkfs.xfs", "mount")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	for fstype, size := range map[string]int64{"ext4": 300 << 20, "xfs": 400 << 20} {
		t.Run(fstype, func(t *testing.T) {
			dir, remount := mount(t, fstype, image(t, fstype, size), "loop")
			phases := map[string]*tally{}
			for _, sc := range scenarios() {
				points := cutsAt()[sc.name]
				if len(points) == 0 {
					continue
				}
				e := newEnumeration(t, sc)
				for _, at := range points {
					phase := phaseOf(sc, at)
					if phases[phase] == nil {
						phases[phase] = &tally{}
					}
					c := phases[phase]
					c.tried++
					if problems := e.powerCut(t, dir, remount, at); len(problems) > 0 {
						c.lost++
						t.Errorf("%s: cut at %s: %s", sc.name, at, strings.Join(problems, "\n"))
					}
					c.survived = c.tried - c.lost
				}
			}
			for _, phase := range slices.Sorted(maps.Keys(phases)) {
				phases[phase].report(t, fmt.Sprintf("power cuts on %s: %s", fstype, phase))
			}
		})
	}
}

// phaseOf is the phase that a point belongs to.
func phaseOf(sc scenario, at string) string {
	if len(sc.resume) == 0 || sc.args[0] != "run" {
		return sc.name
	}
	name, _, _ := strings.Cut(at, ".")
	if of, ok := map[string]string{"samples": "merge", "blob": "extract"}[name]; ok {
		return of
	}
	return name
}

// powerCut runs the scenario on the volume in dir, cuts the power while it
// stands at a point, and goes on. It returns what is wrong afterwards.
func (e *enumeration) powerCut(t *testing.T, dir string, remount func(), at string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	s := copySite(t, e.begin, filepath.Join(dir, "site"))
	unix.Sync() // what was there before is not what the drill is about
	seq, real := s.cut(t, dir, e.sc.args, []string{"EAGLEBATCH_FAULT=" + at + ":stop"}, func(cmd *exec.Cmd) {
		if !stopped(t, cmd.Process.Pid) {
			bad("never came there")
		}
	})
	remount()
	if !real {
		bad("was not interrupted")
	}
	before := s.truth(t, bad)
	if before.seq < seq {
		bad("the ledger had step %d before the cut, and %d after it", seq, before.seq)
	}
	if r := s.run(t, nil, e.next(before)...); r.code != 0 {
		bad("the resumed run: %v", r)
		return problems
	}
	after := s.truth(t, bad)
	before.kept(after, bad)
	after.finished(bad)
	if r := s.run(t, nil, "check", "--full"); r.code != 0 {
		bad("check --full: %v", r)
	}
	if d := cmp.Diff(e.want, s.files(t)); d != "" {
		bad("files differ from the undisturbed run (-want +got):\n%s", d)
	}
	must(t, os.RemoveAll(s.dir))
	return problems
}

// TestDrillPowerCut cuts the power at random moments of a run, also of the
// resume after a cut: nothing is lost that the ledger had before the cut, and
// the files are in the end those of the undisturbed run.
func TestDrillPowerCut(t *testing.T) {
	needDrills(t, "mkfs.ext4", "mkfs.xfs", "mount")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	cuts := 10
	if *long {
		cuts = 500
	}
	for fstype, size := range map[string]int64{"ext4": 300 << 20, "xfs": 400 << 20} {
		t.Run(fstype, func(t *testing.T) { powerCuts(t, fstype, size, cuts) })
	}
}

func powerCuts(t *testing.T, fstype string, size int64, cuts int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, remount := mount(t, fstype, image(t, fstype, size), "loop")
	s := newSite(t, filepath.Join(dir, "site"))
	begin := time.Now()
	s.ok(t, "run")
	whole := time.Since(begin)
	want := s.files(t)
	wipe := func() {
		must(t, os.RemoveAll(s.work()))
		unix.Sync() // the datasets are not what the drill is about
	}
	wipe()
	var c tally
	var acknowledged uint64
	for c.tried < cuts {
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		var before truth
		for range 1 + rng.IntN(2) {
			after := time.Duration(rng.Int64N(int64(whole)))
			seq, real := s.cut(t, dir, []string{"run"}, nil, func(*exec.Cmd) { time.Sleep(after) })
			if real {
				c.tried++
			}
			acknowledged += seq
			remount()
			now := s.truth(t, bad)
			if now.seq < seq {
				bad("the ledger had step %d before the cut, and %d after it", seq, now.seq)
			}
			before.kept(now, bad)
			before = now
		}
		if r := s.run(t, nil, "run"); r.code != 0 {
			bad("the resumed run: %v", r)
		} else {
			after := s.truth(t, bad)
			before.kept(after, bad)
			after.finished(bad)
			if r := s.run(t, nil, "check", "--full"); r.code != 0 {
				bad("check --full: %v", r)
			}
			if d := cmp.Diff(want, s.files(t)); d != "" {
				bad("files differ from the undisturbed run (-want +got):\n%s", d)
			}
		}
		if len(problems) > 0 {
			c.lost++
			t.Errorf("after %d cuts: %s", c.tried, strings.Join(problems, "\n"))
		}
		wipe()
	}
	if acknowledged == 0 {
		t.Error("no cut came after a step was acknowledged: the drill proves nothing")
	}
	c.survived = c.tried - c.lost
	c.report(t, "power cuts on "+fstype)
}

// cut cuts the power of a command once wait returns. It returns the last step that the
// ledger had acknowledged before, by a trace on another volume: a step's line
// is synced before its commit begins. real is false where the run had ended by
// itself, so that nothing was interrupted.
func (s site) cut(t *testing.T, dir string, args, env []string, wait func(*exec.Cmd)) (seq uint64, real bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	acks := filepath.Join(t.TempDir(), "acks")
	cmd := s.command(ctx, append(env, "EAGLEBATCH_FSTRACE="+acks), args...)
	must(t, cmd.Start())
	wait(cmd)
	seq = acknowledged(t, acks, s.work())
	must(t, powerOff(dir))
	must(t, cmd.Process.Kill())
	err := cmd.Wait()
	return seq, err != nil
}
