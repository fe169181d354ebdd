package store_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"eaglebatch/store"
	"eaglebatch/store/storetest"
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

// TestPowerCut: every step that was said to be durable is there after a power
// cut, and the ledger opens without repair.
func TestPowerCut(t *testing.T) {
	mnt, img := t.TempDir(), filepath.Join(t.TempDir(), "ext4.img")
	write(t, img, nil)
	storetest.Truncate(t, img, 48<<20)
	mount := func() error { return exec.Command("mount", "-o", "loop", img, mnt).Run() }
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", img).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v %s", err, out)
	}
	if err := mount(); err != nil {
		t.Skipf("needs to mount a loop device: %v", err)
	}
	mounted := true
	t.Cleanup(func() {
		if mounted {
			if err := unix.Unmount(mnt, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
	})
	dir := filepath.Join(mnt, "work")
	w, err := store.Init(t.Context(), dir, store.Options{Reserve: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for after := range 7 {
		before, said := cutPower(t, mnt, dir, after)
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Fatal(err)
		}
		mounted = false
		if err := mount(); err != nil {
			t.Fatal(err)
		}
		mounted = true
		w, err := store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10})
		if err != nil {
			t.Fatalf("cut after %d steps: %v", after, err)
		}
		if n := mustCount(t, w); n < before || n > said+1 {
			t.Errorf("said %d before the cut and %d in all, found %d", before, said, n)
		}
		if err := w.CheckLedger(t.Context()); err != nil {
			t.Error(err)
		}
		// From the same start each time.
		update(t, w, func(tx *store.Tx) error { return setCount(tx, 0) })
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// cutPower lets a writer run and cuts the power once it has said that it made
// some steps. It returns the last step said before, and the last one at all.
func cutPower(t *testing.T, mnt, dir string, steps int) (before, said int) {
	t.Helper()
	cmd := command(dir)
	cmd.Stderr = nil // the disk fails under it
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(pipe)
	for said < steps && sc.Scan() {
		if n, err := strconv.Atoi(sc.Text()); err == nil {
			said = n
		}
	}
	before = said
	if err := powerOff(mnt); err != nil {
		t.Fatal(err)
	}
	for sc.Scan() {
		if n, err := strconv.Atoi(sc.Text()); err == nil {
			said = n
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Logf("the writer was done before the power was cut")
	}
	return before, said
}
