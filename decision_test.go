package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/fixtures"
	"eaglebatch/internal/fsx"

	"golang.org/x/sys/unix"
)

// smallVolume mounts a tmpfs of size bytes, or skips where that is not allowed.
func smallVolume(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestDecision: a plan that fits only once old states are gone seals a proof,
// waits, and goes on by itself after the printed command.
func TestDecision(t *testing.T) {
	vol := smallVolume(t, 280<<20)
	config, err := fixtures.Quickstart(vol)
	if err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(filepath.Dir(config), "old", "rows_0-2000")
	if err := os.MkdirAll(old, 0o777); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 1<<20)
	rng := rand.NewChaCha8([32]byte{1})
	for i := range 130 {
		rng.Read(noise)
		if err := os.WriteFile(filepath.Join(old, fmt.Sprintf("data_%d.ckpt", i)), noise, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	edit(t, config, "dtype: fp32", "proof: 20, dtype: fp32")
	edit(t, config, "extract:", "gc: {adopt: [{name: old-10k, path: old}]}\nextract:")
	eagle(t, "merge", "-q", "-c", config).want(t, 0)
	sp, err := fsx.SpaceAt(vol)
	if err != nil {
		t.Fatal(err)
	}
	// All but 20 MiB of what is free is reserve: 41 MiB of states do not fit.
	edit(t, config, "proof: 20", fmt.Sprintf("proof: 20, reserve: %d", sp.Free-20<<20))

	r := eagle(t, "run", "-q", "-c", config).want(t, 4)
	r.says(t, "a proof of 20 samples is sealed", "plan --accept gc=old-10k", "it fits once", "every chunk checked", "old-10k is not compared: specforge files")
	s := statOf(t, config)
	if g := s.Generations[len(s.Generations)-1]; g.Kind != "proof" || g.State != "sealed" || g.Samples != 20 {
		t.Errorf("proof %+v", g)
	}
	if !strings.Contains(s.Next, "decide") {
		t.Errorf("next is %q", s.Next)
	}
	if _, err := os.Stat(old); err != nil {
		t.Fatalf("old states are gone before the decision: %v", err)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 4).says(t, "every chunk checked") // asking again changes nothing
	eagle(t, "plan", "-q", "-c", config, "--accept", "gc=old-10k").want(t, 0)
	eagle(t, "run", "-q", "-c", config).want(t, 0).says(t, "old-10k deleted as decided")
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("old states are still there: %v", err)
	}
	s = statOf(t, config)
	if g := s.Generations[len(s.Generations)-1]; g.State != "sealed" || g.Samples != 363 || s.Plan.Reused != 20 {
		t.Errorf("%+v, %d reused", g, s.Plan.Reused)
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
}

// TestDecisionThatIsNotEnough: a decision whose deletions do not make the room
// deletes nothing; one that is killed in the middle of deleting is finished by
// the next run, although what it names lies in the trash by then.
func TestDecisionThatIsNotEnough(t *testing.T) {
	vol := smallVolume(t, 280<<20)
	s := newSite(t, filepath.Join(vol, "site"))
	for name, files := range map[string]int{"a": 10, "b": 1500} {
		for i := range files {
			p := filepath.Join(vol, "old", name, fmt.Sprintf("hs_%d.safetensors", i))
			must(t, os.MkdirAll(filepath.Dir(p), 0o777))
			must(t, os.WriteFile(p, make([]byte, 20_000), 0o666))
		}
	}
	s.ok(t, "merge")
	sp, err := fsx.SpaceAt(vol)
	must(t, err)
	// 2 MB of states, and room for the proof only.
	s.configure(t, strings.Replace(strings.Replace(drillConfig, "reserve: 1MiB", fmt.Sprintf("proof: 4, reserve: %d", sp.Free-600_000), 1),
		"min_age: 0s", "min_age: 0s, adopt: [{name: old-a, path: ../old/a}, {name: old-b, path: ../old/b}]", 1))
	if r := s.run(t, nil, "run"); r.code != 4 || !strings.Contains(r.err, "plan --accept gc=old-b") {
		t.Fatalf("%v", r)
	}
	if r := s.ok(t, "plan", "--accept", "gc=old-a"); !strings.Contains(r.out, "not enough") {
		t.Errorf("the plan does not say that it is not enough:\n%s", r.out)
	}
	if r := s.run(t, nil, "run"); r.code != 4 || !strings.Contains(r.err, "which is not enough") {
		t.Errorf("%v", r)
	}
	if n := count(t, filepath.Join(vol, "old", "a")); n != 10 {
		t.Fatalf("%d files are left of what was not worth deleting", n)
	}
	if r := s.ok(t, "plan", "--accept", "gc=old-b"); !strings.Contains(r.out, "the next run deletes it for good, as decided") {
		t.Errorf("the plan does not say what goes:\n%s", r.out)
	}
	if r := s.run(t, []string{"EAGLEBATCH_FAULT=gc.before-unlink:5:kill"}, "run"); r.signal == 0 {
		t.Fatalf("not killed: %v", r)
	}
	s.ok(t, "run")
	if a, b := count(t, filepath.Join(vol, "old", "a")), count(t, filepath.Join(vol, "old")); a != 10 || b != 10 {
		t.Errorf("%d files of old-a are left, %d in all", a, b)
	}
	s.ok(t, "check", "--full")
}

// TestProofIsCompared: where an older generation made here holds states of the
// same samples, the proof is held against it before the decision.
func TestProofIsCompared(t *testing.T) {
	vol := smallVolume(t, 300<<20)
	config, err := fixtures.Quickstart(vol)
	if err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	sp, err := fsx.SpaceAt(vol)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, config, "dtype: fp32", fmt.Sprintf("proof: 30, dtype: bf16, reserve: %d", sp.Free-10<<20))
	eagle(t, "run", "-q", "-c", config, "--redo", "plan").want(t, 4).says(t,
		"proof: generation 3", "30 samples", "the next token comes first in", "compared with generation 2 (gen-000002): 30 of 30 samples are in both: close", "plan --accept gc=gen-000002")
}

// TestVolumeFilledByOthers: when another process fills the volume after the
// plan, the run stops with 28, says how much is missing, and goes on when there
// is room.
func TestVolumeFilledByOthers(t *testing.T) {
	vol := smallVolume(t, 300<<20)
	config, err := fixtures.Quickstart(vol)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, config, "dtype: fp32", "reserve: 4MiB, dtype: fp32")
	edit(t, config, "backend: native", "backend: synthetic")
	for _, c := range []string{"merge", "shuffle", "plan"} {
		eagle(t, c, "-q", "-c", config).want(t, 0)
	}
	sp, err := fsx.SpaceAt(vol)
	if err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(vol, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte{1}, int(sp.Free-30<<20)), 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 28).says(t, "missing", "free space")
	s := statOf(t, config)
	if s.Extract.MissingBytes <= 0 || s.Extract.Left == 0 {
		t.Errorf("%+v", s.Extract)
	}
	eagle(t, "gc", "-q", "-c", config).want(t, 0)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	if s := statOf(t, config); s.Extract.Left != 0 || s.Extract.MissingBytes != 0 {
		t.Errorf("%+v", s.Extract)
	}
}
