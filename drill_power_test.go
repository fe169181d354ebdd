package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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

// TestDrillPowerCut cuts the power at random moments of a run, also of the
// resume after a cut: nothing is lost that the ledger had before the cut, and
// the files are in the end those of the undisturbed run.
func TestDrillPowerCut(t *testing.T) {
	needDrills(t, "mkfs.ext4", "mkfs.xfs", "mount")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	cuts := 20
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
			seq, real := s.cut(t, dir, time.Duration(rng.Int64N(int64(whole))))
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

// cut cuts the power of a run after a while. It returns the last step that the
// ledger had acknowledged before, by a trace on another volume: a step's line
// is synced before its commit begins. real is false where the run had ended by
// itself, so that nothing was interrupted.
func (s site) cut(t *testing.T, dir string, after time.Duration) (seq uint64, real bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	acks := filepath.Join(t.TempDir(), "acks")
	cmd := s.command(ctx, []string{"EAGLEBATCH_FSTRACE=" + acks}, "run")
	must(t, cmd.Start())
	time.Sleep(after)
	seq = acknowledged(t, acks, s.work())
	must(t, powerOff(dir))
	must(t, cmd.Process.Kill())
	err := cmd.Wait()
	return seq, err != nil
}
