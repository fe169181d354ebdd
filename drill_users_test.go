package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// nobody is a user without rights of any kind.
const nobody = 65534

// asNobody runs a child as another user, from a copy of the program that this
// user may run.
func (s site) asNobody(t *testing.T, bin string, args ...string) ending {
	t.Helper()
	cmd := s.command(t.Context(), nil, args...)
	cmd.Path, cmd.Err = bin, nil
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	r, err := finish(cmd)
	must(t, err)
	return r
}

// publicCopy copies the program to where every user may run it.
func publicCopy(t *testing.T, dir string) string {
	t.Helper()
	from, err := exec.LookPath("eaglebatch")
	must(t, err)
	in, err := os.Open(from)
	must(t, err)
	defer in.Close()
	path := filepath.Join(dir, "bin", "eaglebatch")
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.Chmod(dir, 0o755)) // a temporary directory is its owner's
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	must(t, err)
	_, err = io.Copy(out, in)
	must(t, errors.Join(err, out.Close(), os.Chmod(path, 0o755)))
	return path
}

// modes sets the modes of a whole tree.
func modes(t *testing.T, dir string, dirs, files os.FileMode) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, dirs)
		}
		return os.Chmod(path, files)
	}))
}

// TestDrillUsers: another user, who may read and not write, sees what there is
// and changes nothing; where even that is forbidden, or a directory may not be
// written to, the answer names it.
func TestDrillUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dir := scratch(t)
	bin := publicCopy(t, dir)
	s := newSite(t, filepath.Join(dir, "site"))
	s.ok(t, "run")
	modes(t, s.dir, 0o755, 0o644)
	want := s.files(t)
	var sum tally
	expect := func(code int, says string, args ...string) {
		t.Helper()
		r := s.asNobody(t, bin, args...)
		if sum.tried++; r.code != code || !strings.Contains(r.out+r.err, says) {
			t.Errorf("another user's %v: exit code %d and %q wanted: %v", args, code, says, r)
		}
	}
	expect(0, `"live": false`, "stat", "--json")
	expect(0, "layer", "cat", "2:0")
	expect(0, "gen-000002", "generations")
	expect(0, "manifest.db is not compared", "check", "--full")
	for _, args := range [][]string{{"run"}, {"gc", "--apply"}, {"shuffle"}} {
		expect(1, "permission denied", args...)
	}
	s.same(t, want)
	modes(t, s.work(), 0o700, 0o600)
	expect(1, "permission denied", "stat")
	expect(1, "permission denied", "cat", "2:0")

	// The workspace is the other user's own, and one directory may not be written to.
	own := newSite(t, filepath.Join(dir, "own"))
	chown := func() {
		must(t, filepath.WalkDir(own.dir, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Chown(path, nobody, nobody))
		}))
	}
	chown()
	s = own
	expect(5, "", "run", "--limit", "20")
	for _, name := range []string{"generations/000002", "checkpoints.jsonl", "manifest.db", "run.lock"} {
		st, err := os.Stat(own.work(name))
		must(t, err)
		must(t, os.Chmod(own.work(name), st.Mode().Perm()&0o555))
		expect(1, name, "run")
		must(t, os.Chmod(own.work(name), st.Mode().Perm()))
	}
	expect(0, "is sealed", "run")
	own.same(t, want)
	sum.survived = sum.tried
	sum.report(t, "world: users and rights")
}

// TestDrillUmask: a run that was begun under one umask goes on under another,
// and the files can be used by whom the umask says.
func TestDrillUmask(t *testing.T) {
	dir := scratch(t)
	want := undisturbed(t, filepath.Join(dir, "reference"))
	var sum tally
	for _, masks := range [][2]string{{"077", "022"}, {"000", "077"}, {"027", "000"}} {
		s := newSite(t, filepath.Join(dir, masks[0]))
		for i, point := range []string{"blob.after-rename:2", "none"} {
			cmd := exec.Command("/bin/sh", "-c", "umask "+masks[i]+"; exec eaglebatch run")
			cmd.Dir, cmd.Env = s.dir, os.Environ()
			if i == 0 {
				cmd.Env = append(cmd.Env, "EAGLEBATCH_FAULT="+point)
			}
			r, err := finish(cmd)
			must(t, err)
			if i == 0 && r.signal != syscall.SIGKILL || i == 1 && r.code != 0 {
				t.Fatalf("umask %s: %v", masks[i], r)
			}
		}
		s.same(t, want)
		var mask os.FileMode
		_, err := fmt.Sscanf(masks[0], "%o", &mask)
		must(t, err)
		for _, name := range []string{"EAGLEBATCH", "checkpoints.jsonl", "run.lock", "generations/000002/blob-000000.ebb"} {
			st, err := os.Stat(s.work(name))
			must(t, err)
			if sum.tried++; st.Mode().Perm() != 0o666&^mask {
				t.Errorf("umask %s: %s has mode %v", masks[0], name, st.Mode())
			}
		}
	}
	sum.survived = sum.tried
	sum.report(t, "world: umasks")
}

// TestDrillClock: a clock that was set back leaves times in the future, in files
// and in the ledger. Nothing fails of it, and gc takes nothing for old.
func TestDrillClock(t *testing.T) {
	dir := scratch(t)
	s := newSite(t, filepath.Join(dir, "site"))
	twoGenerations(t, s)
	s.ok(t, "gc", "--apply", "--min-age", "24h")
	if !exists(s.work("trash")) {
		t.Fatal("nothing is in the trash")
	}
	later := time.Now().Add(48 * time.Hour)
	future(t, s, later)
	want := s.files(t)
	var sum tally
	for _, args := range [][]string{{"stat"}, {"run"}, {"check", "--full"}, {"gc"}, {"gc", "--apply", "--min-age", "1h"}, {"audit"}, {"cat", "3:0"}} {
		s.ok(t, args...)
		sum.tried++
		if d := cmp.Diff(want, s.files(t)); d != "" {
			t.Fatalf("%v changed files (-want +got):\n%s", args, d)
		}
	}
	// The work goes on, too.
	s.configure(t, strings.Replace(drillConfig, "seed: 42", "seed: 44", 1))
	s.edit(t, "layers: [2, 4, 8]", "layers: [1, 3, 8]")
	future(t, s, later)
	s.ok(t, "run", "--redo", "shuffle")
	s.ok(t, "check", "--full")
	sum.tried++
	sum.survived = sum.tried
	sum.report(t, "world: a clock set back")
}

// future moves the times of every file, of status.json and of the ledger's rows
// to a moment that is yet to come.
func future(t *testing.T, s site, at time.Time) {
	t.Helper()
	var status map[string]any
	b, err := os.ReadFile(s.work("status.json"))
	must(t, err)
	must(t, json.Unmarshal(b, &status))
	status["updated"] = at
	b, err = json.Marshal(status)
	must(t, err)
	must(t, os.WriteFile(s.work("status.json"), b, 0o666))
	ws := storetest.MustOpen(t, s.work())
	must(t, ws.Update(t.Context(), "clock", func(tx *store.Tx) error {
		gens, err := tx.Generations()
		for _, g := range gens {
			g.Created, g.Changed = at, at
			if !g.Sealed.IsZero() {
				g.Sealed = at
			}
			err = errors.Join(err, tx.PutGeneration(g))
		}
		for _, name := range store.Phases() {
			row, ok, perr := tx.Phase(name)
			if err = errors.Join(err, perr); ok {
				row.Started, row.Finished = at, at
				err = errors.Join(err, tx.PutPhase(row))
			}
		}
		return err
	}))
	must(t, ws.Close())
	must(t, filepath.WalkDir(s.work(), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, at, at))
	}))
}
