package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"eaglebatch/store"
	"eaglebatch/store/retain"

	"golang.org/x/sys/unix"
)

// gcFiles is how many files the tree has that the drill deletes.
const gcFiles = 2000

// TestDrillGC cuts the power, or kills gc, at random moments of the deletion of
// an adopted tree: whatever is not whole is listed as such, what is sealed
// stays, and the same command finishes.
func TestDrillGC(t *testing.T) {
	needDrills(t, "mkfs.ext4", "mkfs.xfs", "mount", "losetup")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	strikes := 8
	if *long {
		strikes = 200
	}
	for fstype, size := range map[string]int64{"ext4": 200 << 20, "xfs": 400 << 20} {
		t.Run(fstype, func(t *testing.T) { gcStrikes(t, fstype, size, strikes) })
	}
}

func gcStrikes(t *testing.T, fstype string, size int64, strikes int) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, remount := mount(t, fstype, attach(t, image(t, fstype, size)), "rw")
	d := gcDrill{site: newSite(t, filepath.Join(dir, "site")), mount: dir}
	d.ok(t, "run")
	d.fill(t)
	begin := time.Now()
	d.ok(t, d.args()...)
	whole := time.Since(begin)
	states := map[store.GenState]int{}
	var c tally
	for c.tried < strikes {
		d.fill(t)
		c.tried++
		power := c.tried%2 == 1
		d.strike(t, time.Duration(rng.Int64N(int64(whole))), power)
		if power {
			remount()
		}
		var problems []string
		bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
		states[d.listed(t, bad)]++
		if r := d.run(t, nil, d.args()...); r.code != 0 {
			bad("the same command again: %v", r)
		}
		d.gone(t, bad)
		if r := d.run(t, nil, "check", "--full"); r.code != 0 {
			bad("check --full: %v", r)
		}
		if len(problems) > 0 {
			c.lost++
			t.Errorf("after %d strikes (power cut: %v): %s", c.tried, power, strings.Join(problems, "\n"))
		}
	}
	t.Logf("struck while it was %v", states)
	c.survived = c.tried - c.lost
	c.report(t, "gc struck on "+fstype)
}

// attach makes one device of an image for the whole test, as a disk is one:
// each mount of the image itself may take another, and what was adopted lies on
// a device.
func attach(t *testing.T, img string) (disk string) {
	t.Helper()
	out, err := exec.Command("losetup", "--find", "--show", img).CombinedOutput()
	if err != nil {
		skip(t, "needs a loop device: %v %s", err, out)
	}
	disk = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", disk).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v %s", disk, err, out)
		}
	})
	return disk
}

// gcDrill is a site beside a tree of old states.
type gcDrill struct {
	site
	mount string
}

func (d gcDrill) old() string { return filepath.Join(d.mount, "old") }

func (d gcDrill) args() []string {
	return []string{"gc", "--apply", "--now", "--name", "old-10k", "--yes", "old-10k"}
}

// fill makes the tree and adopts it.
func (d gcDrill) fill(t *testing.T) {
	t.Helper()
	for i := range gcFiles {
		rows := filepath.Join(d.old(), fmt.Sprintf("rows_%d-%d", i/500*500, i/500*500+500))
		must(t, os.MkdirAll(rows, 0o777))
		must(t, os.WriteFile(filepath.Join(rows, fmt.Sprintf("data_%d.ckpt", i)), make([]byte, 1000), 0o666))
	}
	d.ok(t, "generations", "adopt", d.old(), "--name", "old-10k")
	unix.Sync()
}

// strike deletes the tree and is stopped after a while.
func (d gcDrill) strike(t *testing.T, after time.Duration, power bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := d.command(ctx, nil, d.args()...)
	must(t, cmd.Start())
	time.Sleep(after)
	if power {
		must(t, powerOff(d.mount))
	}
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err != nil {
		t.Logf("stopped after %s (power cut: %v)", after, power)
	}
}

// listed compares what the ledger says of the tree with where its files are,
// and returns the state it found.
func (d gcDrill) listed(t *testing.T, bad func(string, ...any)) store.GenState {
	t.Helper()
	gens, err := d.snapshot(t).Generations()
	must(t, err)
	g := gens[len(gens)-1]
	place, trash := count(t, d.old()), 0
	if g.Trash != "" {
		trash = count(t, g.Trash)
	}
	switch {
	case g.Name != "old-10k":
		bad("the last generation is %+v", g)
	case retain.IsGone(g):
		if place+trash > 0 {
			bad("gone, and yet there are %d files", place+trash)
		}
	case g.State == store.GenTrashed && g.Path == "": // listed as being unlinked
		if place > 0 {
			bad("being unlinked, and %d files are in their old place", place)
		}
	case g.State == store.GenSealed && place != gcFiles,
		g.State == store.GenCondemned && place != gcFiles && trash != gcFiles,
		g.State == store.GenTrashed && trash != gcFiles:
		bad("%s, with %d files in place and %d in the trash of %d", g.State, place, trash, gcFiles)
	}
	return g.State
}

// gone makes sure that nothing is left of the tree.
func (d gcDrill) gone(t *testing.T, bad func(string, ...any)) {
	t.Helper()
	if n := count(t, d.old()); n > 0 {
		bad("%d files are left", n)
	}
	left, err := filepath.Glob(filepath.Join(d.mount, ".eaglebatch-trash-*"))
	must(t, err)
	if len(left) > 0 {
		bad("left %v", left)
	}
}

// count counts the files below dir.
func count(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	})
	if !errors.Is(err, fs.ErrNotExist) {
		must(t, err)
	}
	return n
}
