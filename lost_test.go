package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"eaglebatch/store/storetest"
)

// TestLostDirectory: a generation whose directory is gone is one problem that
// names it; what is said to help does, and gc takes the generation off the list.
func TestLostDirectory(t *testing.T) {
	config, gen := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	whole := openStates(t, gen)
	var want [][]byte
	for i := range whole.Index().Positions() {
		want = append(want, bitsAt(t, whole, i))
	}
	must(t, os.RemoveAll(gen))
	must(t, os.WriteFile(gen, nil, 0o666)) // a file in its place is no directory either
	if d := checked(t, config, 12); len(d.Problems) != 1 || d.Problems[0].Path != gen {
		t.Errorf("a file in its place: %+v", d.Problems)
	}
	must(t, os.Remove(gen))
	for _, args := range [][]string{nil, {"--full"}} {
		d := checked(t, config, 12, args...)
		if len(d.Problems) != 1 || d.Problems[0].Path != gen || d.Problems[0].Generation != 2 || !strings.Contains(d.Problems[0].Error, "directory is missing, and with it") {
			t.Errorf("check %v: %+v", args, d.Problems)
		}
	}
	for _, command := range []string{"check", "run"} {
		eagle(t, command, "-q", "-c", config).want(t, 12).says(t, "damage found: 1 problem", "put "+gen+" back", "'eaglebatch check --repair'")
	}
	// Nothing made its states anew: a disk that is not mounted looks the same.
	eagle(t, "gc", "-q", "-c", config, "--apply", "--keep", "0", "--no-fallback").want(t, 0)
	if g := statOf(t, config).Generations; len(g) != 1 || g[0].State != "sealed" {
		t.Fatalf("%+v", g)
	}

	eagle(t, "check", "--repair", "-q", "-c", config).want(t, 0)
	if d := checked(t, config, 0, "--full"); len(d.Known) != 1 || d.Known[0].Path != gen {
		t.Errorf("after the repair: %+v", d)
	}
	now := openStates(t, filepath.Join(filepath.Dir(gen), "000003"))
	for i, bits := range want {
		if !slices.Equal(bits, bitsAt(t, now, int64(i))) {
			t.Fatalf("position %d has other states", i)
		}
	}
	r := eagle(t, "gc", "-q", "-c", config).want(t, 0)
	if !strings.Contains(r.out, "forget") || !strings.Contains(r.out, "do it with") {
		t.Errorf("gc: %s", r.out)
	}
	eagle(t, "gc", "-q", "-c", config, "--apply").want(t, 0)
	if d := checked(t, config, 0, "--full"); len(d.Known) > 0 {
		t.Errorf("after gc: %+v", d)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 0)
}

// TestLostPointers: a generation that only points into another is made anew in
// its place.
func TestLostPointers(t *testing.T) {
	config, gen := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	eagle(t, "run", "-q", "-c", config, "--seed", "7", "--redo", "shuffle").want(t, 0)
	edit(t, config, "seed: 42", "seed: 7")
	dir := filepath.Join(filepath.Dir(gen), "000003")
	want := openStates(t, dir).Index().Positions()
	must(t, os.RemoveAll(dir))
	if d := checked(t, config, 12); len(d.Problems) != 1 || d.Problems[0].Path != dir || d.Problems[0].Error != "the directory is missing" {
		t.Errorf("%+v", d.Problems)
	}
	eagle(t, "check", "--repair", "-q", "-c", config).want(t, 0)
	if n := openStates(t, dir).Index().Positions(); n != want {
		t.Errorf("%d positions, want %d", n, want)
	}
	if d := checked(t, config, 0, "--full"); len(d.Known) > 0 {
		t.Errorf("%+v", d)
	}
}

// TestLostWhileBuilding: the directory of a killed run's generation is not made
// anew as if nothing had been in it.
func TestLostWhileBuilding(t *testing.T) {
	for _, help := range [][]string{{"run", "--redo", "extract"}, {"check", "--repair"}} {
		s := newSite(t, t.TempDir())
		s.ok(t, "run")
		want := s.values(t)
		must(t, os.RemoveAll(s.work()))
		if r := s.run(t, []string{"EAGLEBATCH_FAULT=blob.after-commit:2"}, "run"); r.code != -1 {
			t.Fatalf("not killed: %v", r)
		}
		gen := s.work("generations", "000002")
		must(t, os.RemoveAll(gen))
		for _, args := range [][]string{{"run"}, {"check"}, {"run"}} {
			r := s.run(t, nil, args...)
			if r.code != 12 || !strings.Contains(r.err, "put "+gen+" back from a copy") {
				t.Errorf("%v: %v", args, r)
			}
			if exists(gen) {
				t.Errorf("%v made the directory anew", args)
			}
		}
		s.ok(t, help...)
		s.ok(t, "check", "--full")
		if !slices.Equal(want, s.values(t)) {
			t.Errorf("%v: other states", help)
		}
	}
}

// TestDamageIsForgotten: damage on record ends when a full check finds the blob
// sound again, so that damage which comes later is told.
func TestDamageIsForgotten(t *testing.T) {
	config, gen := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	path := filepath.Join(gen, "blob-000003.ebb")
	sound, err := os.ReadFile(path)
	must(t, err)
	storetest.FlipBit(t, path, 100_000)
	eagle(t, "check", "--repair", "-q", "-c", config).want(t, 0)
	if d := checked(t, config, 0, "--full"); len(d.Known) != 1 {
		t.Fatalf("after the repair: %+v", d)
	}
	must(t, os.WriteFile(path, sound, 0o666))
	checked(t, config, 0) // a quick look cannot tell
	storetest.FlipBit(t, path, 100_000)
	if d := checked(t, config, 0, "--full"); len(d.Known) != 1 {
		t.Errorf("forgotten by a quick check: %+v", d)
	}
	must(t, os.WriteFile(path, sound, 0o666))
	eagle(t, "check", "--full", "-c", config).want(t, 0).says(t, "generation 2: 1 blob recorded as damaged, sound again")
	storetest.FlipBit(t, path, 100_000)
	if d := checked(t, config, 12, "--full"); len(d.Problems) != 1 || d.Problems[0].Path != path {
		t.Errorf("new damage of a blob that was mended: %+v", d)
	}
	eagle(t, "check", "--repair", "-q", "-c", config).want(t, 0)
	if d := checked(t, config, 0, "--full"); len(d.Known) != 1 {
		t.Errorf("after the second repair: %+v", d)
	}
}
