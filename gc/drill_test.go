package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
	"eaglebatch/store/storetest"
)

// TestDrill fails at each hit of each point of a sweep and then runs it again:
// nothing that is needed is lost, and nothing is half gone unlisted.
func TestDrill(t *testing.T) {
	points := []fault.Point{fault.GCBeforeCondemn, fault.GCAfterCondemn, fault.GCAfterTrash, fault.GCBeforeUnlink, fault.GCAfterUnlink, fault.LedgerBeforeAppend, fault.LedgerAfterAppend, fault.LedgerAfterCommit}
	for _, p := range points {
		hits := 0
		for n := int64(1); ; n++ {
			if !drill(t, p, n) {
				break
			}
			hits++
		}
		if hits == 0 {
			t.Errorf("%s is never reached", p)
		}
	}
}

// drill returns false where the fault no longer strikes.
func drill(t *testing.T, p fault.Point, n int64) (struck bool) {
	dir := t.TempDir()
	ws, err := store.Init(t.Context(), dir, store.Options{Reserve: 64 << 10, Memory: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	put(t, ws, "a", store.GenAbandoned, nil)
	put(t, ws, "b", store.GenSealed, nil)
	put(t, ws, "c", store.GenSealed, nil)
	adopted := adoptTree(t, ws)
	if err := ws.Close(); err != nil {
		t.Fatal(err)
	}
	fs := &fsx.FS{Faults: fault.New(p, n)}
	if ws, err = store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10, Memory: 64 << 20, FS: fs}); err != nil {
		t.Fatal(err)
	}
	sweepAll := func() error {
		return collect(t, ws, Options{Keep: 1}, Options{Names: []string{"old"}, Now: true}, Options{Keep: 1, Now: true})
	}
	err = sweepAll()
	struck = errors.Is(err, fault.ErrInjected)
	if err != nil && !struck {
		t.Fatalf("%s hit %d: %v", p, n, err)
	}
	if cerr := ws.Close(); cerr != nil && !struck {
		t.Fatal(cerr)
	}
	ws = storetest.MustOpen(t, dir)
	checkListed(t, ws, fmt.Sprintf("%s hit %d", p, n))
	if err := sweepAll(); err != nil {
		t.Fatalf("%s hit %d: the second run: %v", p, n, err)
	}
	for _, name := range []string{"a", "b", "old"} {
		if gens := live(t, ws); slices.Contains(gens, name) {
			t.Errorf("%s hit %d: %s is still there", p, n, name)
		}
	}
	if !there(t, filepath.Join(ws.Dir(), "generations/000003/blob-000001.ebb")) || there(t, adopted) {
		t.Errorf("%s hit %d: the wrong directory is left", p, n)
	}
	if ents, err := os.ReadDir(ws.TrashDir()); err != nil && !errors.Is(err, os.ErrNotExist) || len(ents) > 0 {
		t.Errorf("%s hit %d: the trash holds %v (%v)", p, n, ents, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(adopted), ".eaglebatch-trash-*")); err != nil || len(left) > 0 {
		t.Errorf("%s hit %d: left %v (%v)", p, n, left, err)
	}
	return struck
}

// collect plans and executes one sweep after the other.
func collect(t *testing.T, ws *store.Workspace, sweeps ...Options) error {
	for _, o := range sweeps {
		s, err := Plan(t.Context(), ws, o)
		if err != nil {
			return err
		}
		if _, err := Execute(t.Context(), ws, s, o, progress.Nop{}); err != nil {
			return err
		}
	}
	return nil
}

func live(t testing.TB, ws *store.Workspace) (names []string) {
	t.Helper()
	err := ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			if !retain.IsGone(g) {
				names = append(names, g.Name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// checkListed makes sure that a directory which is not whole has a row that
// says so.
func checkListed(t *testing.T, ws *store.Workspace, when string) {
	t.Helper()
	err := ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			whole := func(dir string) bool {
				want := []string{"LEASE", "blob-000000.ebb", "blob-000001.ebb"}
				if g.Origin == retain.Adopted {
					want = []string{"rows_0-2000/data_0.ckpt", "rows_0-2000/data_1.ckpt"}
				}
				for _, f := range want {
					if !there(t, filepath.Join(dir, f)) {
						return false
					}
				}
				return true
			}
			place, trash := ws.GenerationDir(g), filepath.Join(ws.Dir(), g.Trash)
			if filepath.IsAbs(g.Trash) {
				trash = g.Trash
			}
			switch {
			case g.Path == "":
			case g.State == store.GenTrashed && !whole(trash), g.State == store.GenCondemned && !whole(trash) && !whole(place),
				g.State != store.GenTrashed && g.State != store.GenCondemned && !whole(place):
				t.Errorf("%s: generation %d (%s) is %s but not whole", when, g.ID, g.Name, g.State)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

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
	how := uint32(noLogFlush)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how)))
	err = f.Close()
	if e != 0 {
		return e
	}
	return err
}

// insist tries again for a while: loop devices and mounts are shared with
// other tests that run meanwhile, and a race for them is no failure.
func insist(t *testing.T, do func() error) {
	t.Helper()
	var err error
	for range 100 {
		if err = do(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal(err)
}

// TestPowerCut cuts the power before one operation after the other.
func TestPowerCut(t *testing.T) {
	mnt, img := t.TempDir(), filepath.Join(t.TempDir(), "ext4.img")
	write(t, img, 0)
	must(t, os.Truncate(img, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", img).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v %s", err, out)
	}
	out, err := exec.Command("losetup", "--find", "--show", img).CombinedOutput()
	if err != nil {
		t.Skipf("needs a loop device: %v %s", err, out)
	}
	// One device for all, as one disk is: each mount -o loop may take another.
	disk := strings.TrimSpace(string(out))
	t.Cleanup(func() { insist(t, func() error { return exec.Command("losetup", "-d", disk).Run() }) })
	mount := func() error {
		out, err := exec.Command("mount", disk, mnt).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("mount: %w: %s", err, out)
		}
		return err
	}
	if err := mount(); err != nil {
		t.Skipf("needs to mount a loop device: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(mnt, unix.MNT_DETACH)) })
	cuts := 0
	for at := 1; ; at++ {
		dir := filepath.Join(mnt, fmt.Sprint("cut-", at))
		if !cutPower(t, mnt, dir, at, mount) {
			break
		}
		cuts++
	}
	if cuts < 5 {
		t.Errorf("the power was cut only %d times", cuts)
	}
}

func cutPower(t *testing.T, mnt, dir string, at int, mount func() error) (struck bool) {
	t.Helper()
	o := store.Options{Reserve: 64 << 10, Memory: 64 << 20}
	ws, err := store.Init(t.Context(), filepath.Join(dir, "work"), o)
	if err != nil {
		t.Fatal(err)
	}
	put(t, ws, "a", store.GenAbandoned, nil)
	adopted := filepath.Join(dir, "data", "hidden_states")
	fillTree(t, adopted)
	mustAdopt(t, ws, adopted, "old")
	keep := put(t, ws, "keep", store.GenSealed, nil)
	must(t, ws.Close())
	unix.Sync()
	ops := 0
	o.FS = &fsx.FS{Trace: func(fsx.Op) {
		if ops++; ops == at {
			struck = true
			must(t, powerOff(mnt))
		}
	}}
	if ws, err = store.Open(t.Context(), filepath.Join(dir, "work"), o); err == nil {
		if err = collect(t, ws, Options{Names: []string{"old"}, Now: true}, Options{Keep: 1, Now: true}); err != nil && !struck {
			t.Fatal(err)
		}
		if err := ws.Close(); err != nil && !struck {
			t.Fatal(err)
		}
	}
	insist(t, func() error { return unix.Unmount(mnt, 0) })
	insist(t, mount)
	when := fmt.Sprintf("power cut at operation %d", at)
	ws, err = store.Open(t.Context(), filepath.Join(dir, "work"), store.Options{Reserve: 64 << 10, Memory: 64 << 20})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	checkListed(t, ws, when)
	if err := collect(t, ws, Options{Names: []string{"old"}, Now: true}, Options{Keep: 1, Now: true}); err != nil {
		t.Fatalf("%s: the second run: %v", when, err)
	}
	if names := live(t, ws); !slices.Equal(names, []string{"keep"}) || there(t, adopted) || !there(t, filepath.Join(ws.GenerationDir(keep), "blob-000000.ebb")) {
		t.Errorf("%s: %v are left", when, names)
	}
	must(t, ws.Close())
	return struck
}

// TestFreedIsWhatTheFilesystemSays holds the promise against statfs.
func TestFreedIsWhatTheFilesystemSays(t *testing.T) {
	mnt := t.TempDir()
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(mnt, unix.MNT_DETACH)) })
	ws := storetest.MustInit(t)
	dir := filepath.Join(mnt, "old")
	for i := range 500 {
		write(t, filepath.Join(dir, "rows_0-2000", fmt.Sprintf("data_%d.ckpt", i)), 1000+i*64)
	}
	must(t, os.Link(filepath.Join(dir, "rows_0-2000", "data_499.ckpt"), filepath.Join(mnt, "elsewhere")))
	mustAdopt(t, ws, dir, "old")
	o := Options{Names: []string{"old"}, Now: true}
	s := mustPlan(t, ws, o)
	before, err := fsx.SpaceAt(mnt)
	must(t, err)
	freed, err := Execute(t.Context(), ws, s, o, progress.Nop{})
	must(t, err)
	after, err := fsx.SpaceAt(mnt)
	must(t, err)
	if really := after.Free - before.Free; freed != really || float64(s.Free) < .99*float64(really) || float64(s.Free) > 1.01*float64(really) {
		t.Errorf("promised %d, reported %d, really freed %d", s.Free, freed, really)
	}
}

// TestInterrupted stops a deletion in the middle and goes on with it.
func TestInterrupted(t *testing.T) {
	ws := storetest.MustInit(t)
	dir := filepath.Join(t.TempDir(), "old")
	for i := range 3 * readBatch {
		write(t, filepath.Join(dir, fmt.Sprintf("hs_%d.safetensors", i)), 1)
	}
	mustAdopt(t, ws, dir, "old")
	o := Options{Names: []string{"old"}, Now: true}
	ctx, cancel := context.WithCancel(t.Context())
	rep := &stopper{after: 2000, stop: cancel}
	if _, err := Execute(ctx, ws, mustPlan(t, ws, o), o, rep); !errors.Is(err, context.Canceled) {
		t.Fatalf("not interrupted: %v", err)
	}
	if rep.total != 3*readBatch || rep.seen != 2000 {
		t.Errorf("progress said %d of %d", rep.seen, rep.total)
	}
	if err := Restore(t.Context(), ws, "old"); err == nil || !strings.Contains(err.Error(), "partly unlinked") {
		t.Errorf("restored half a generation: %v", err)
	}
	if it := item(t, mustPlan(t, ws, Options{}), 1); it.Action != ActionUnlink || it.Reason != "being unlinked" {
		t.Errorf("half unlinked: %+v", it)
	}
	mustExecute(t, ws, o)
	if names := live(t, ws); len(names) > 0 || there(t, dir) {
		t.Errorf("%v left", names)
	}
}

// stopper cancels after some files.
type stopper struct {
	progress.Nop
	seen, total, after int64
	stop               func()
}

func (s *stopper) Start(p progress.Phase) { s.total = p.Total }

func (s *stopper) Add(d progress.Delta) {
	if s.seen += d.Units; s.seen == s.after {
		s.stop()
	}
}
