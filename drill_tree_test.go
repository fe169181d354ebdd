package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDrillOthersTree: old states of which some belong to another user are
// counted where they can be read, and never begun to be deleted where that could
// not be finished; a tree that cannot be looked at holds up nothing else.
func TestDrillOthersTree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir := scratch(t)
	bin := publicCopy(t, dir)
	s := newSite(t, filepath.Join(dir, "site"))
	s.configure(t, strings.Replace(drillConfig, "256KiB", "20KiB", 1))
	disk := filepath.Join(s.dir, "disk")
	old := filepath.Join(disk, "old")
	for i := range 60 {
		rows := filepath.Join(old, fmt.Sprintf("rows_%d-%d", i/20*20, i/20*20+20))
		must(t, os.MkdirAll(rows, 0o755))
		must(t, os.WriteFile(filepath.Join(rows, fmt.Sprintf("data_%d.ckpt", i)), make([]byte, 1000), 0o644))
	}
	must(t, filepath.WalkDir(s.dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, nobody, nobody))
	}))
	strange := filepath.Join(old, "rows_20-40")
	as := func(code int, says string, args ...string) {
		t.Helper()
		if r := s.asNobody(t, bin, args...); r.code != code || !strings.Contains(r.out+r.err, says) {
			t.Errorf("%v: exit code %d and %q wanted: %v", args, code, says, r)
		}
	}
	as(0, "", "merge")
	must(t, os.Chown(strange, 0, 0))
	must(t, os.Chmod(strange, 0o700))
	as(1, "permission denied", "generations", "adopt", old, "--name", "old-10k")
	must(t, os.Chmod(strange, 0o755))
	as(0, "60 files", "generations", "adopt", old, "--name", "old-10k")
	as(0, "", "run")
	delete := []string{"gc", "--apply", "--now", "--name", "old-10k", "--yes", "old-10k"}
	as(1, "rows_20-40 cannot be deleted", delete...)
	must(t, os.Chmod(strange, 0o700))
	as(1, "cannot be looked at", delete...)
	as(0, "", "run", "--redo", "plan") // its generation points to the first
	must(t, os.Chmod(disk, 0o555))
	as(1, "cannot be moved", delete...)
	must(t, os.Chmod(disk, 0o755))
	as(0, "", "gc", "--apply")
	as(0, "old-10k", "plan")
	if n := count(t, old); n != 60 {
		t.Fatalf("%d of 60 files are left", n)
	}
	must(t, os.Chmod(disk, 0o000))
	as(0, "(old-10k) cannot be looked at", "plan")
	as(0, "", "gc", "--apply")
	must(t, os.Chmod(disk, 0o755))
	must(t, os.Chown(strange, nobody, nobody))
	must(t, os.Chmod(strange, 0o555)) // one's own: its mode is changed
	as(0, "done", delete...)
	if n := count(t, old); n != 0 {
		t.Errorf("%d files are left", n)
	}
}

// TestAdoptedByConfiguration: the name in gc.adopt stands for the directory that
// was adopted by it, and for no other that takes its place in the file; old
// states that hold a dataset are not adopted.
func TestAdoptedByConfiguration(t *testing.T) {
	s := newSite(t, t.TempDir())
	for _, dir := range []string{"old-a", "old-b"} {
		must(t, os.MkdirAll(filepath.Join(s.dir, dir), 0o777))
		must(t, os.WriteFile(filepath.Join(s.dir, dir, "hs_1.safetensors"), make([]byte, 50_000), 0o666))
	}
	adopting := func(path string) {
		s.configure(t, strings.Replace(drillConfig, "min_age: 0s", "min_age: 0s, adopt: [{name: old-10k, path: "+path+"}]", 1))
	}
	refused := func(says string, args ...string) {
		t.Helper()
		if r := s.run(t, nil, args...); r.code == 0 || !strings.Contains(r.err, says) {
			t.Errorf("%v: %q wanted: %v", args, says, r)
		}
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "data", "hs_1.safetensors"), make([]byte, 900_000), 0o666))
	adopting("data")
	refused("holds dataset A", "run")
	adopting("old-a")
	s.ok(t, "run")
	adopting("old-b")
	refused("generation 1 of that name is", "run")
	adopting("old-a")
	r := s.ok(t, "generations")
	if !strings.Contains(r.out, "adopted: speculators, 1 file;") {
		t.Errorf("the format is not listed:\n%s", r.out)
	}
	refused("there are: old-10k, samples-000002, gen-000003", "gc", "--name", "old-10")
	s.ok(t, "generations", "pin", "old-10k")
	refused("generations unpin old-10k", "gc", "--apply", "--name", "old-10k")
	s.ok(t, "generations", "unpin", "old-10k")
	s.ok(t, "gc", "--apply", "--now", "--name", "old-10k", "--yes", "old-10k")
	refused(`"old-10k" is deleted for good`, "generations", "restore", "old-10k")
	s.ok(t, "run") // what is deleted is not missed
}
