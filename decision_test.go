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
	"eaglebatch/store"

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
	if r := eagle(t, "plan", "-q", "-c", config, "--accept", "gc=old-10k").want(t, 0); !strings.Contains(r.out, "deletes old-10k and goes on") || strings.Contains(r.out, "ways out") {
		t.Errorf("the plan does not say that it is decided:\n%s", r.out)
	}
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

// TestProbedPlanThatJustFits: what a probe foretold is what extraction asks for,
// also for the first blob, of which nothing is measured yet.
func TestProbedPlanThatJustFits(t *testing.T) {
	vol := smallVolume(t, 280<<20)
	config, err := fixtures.Quickstart(vol)
	must(t, err)
	edit(t, config, "dtype: fp32", "reserve: 0, blob_size: 64MiB, dtype: bf16")
	for _, args := range [][]string{{"merge"}, {"shuffle"}, {"plan", "--probe", "100"}} {
		eagle(t, append(args, "-q", "-c", config)...).want(t, 0)
	}
	p := statOf(t, config).Plan
	room := p.Expected*102/100 + 1<<20 // the model's head is half of that
	if p.Blobs != 1 || room > p.RawBytes*9/10 {
		t.Fatalf("%+v: nothing is shown", p)
	}
	sp, err := fsx.SpaceAt(vol)
	must(t, err)
	edit(t, config, "reserve: 0", fmt.Sprint("reserve: ", sp.Free-room))
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	if now, err := fsx.SpaceAt(vol); err != nil || now.Free < sp.Free-room {
		t.Errorf("%d bytes are free (%v), %d were to be kept", now.Free, err, sp.Free-room)
	}
}

// TestSmallerProof: where the room does not hold the whole proof, it is made of
// as many samples as it holds; where it holds too few, none is made, and what is
// asked says so and how to get one.
func TestSmallerProof(t *testing.T) {
	for room, want := range map[int64]string{1_000_000: "hold a proof of", 60_000: "no proof: its first 16 samples need"} {
		t.Run(want, func(t *testing.T) {
			vol := smallVolume(t, 280<<20)
			s := newSite(t, filepath.Join(vol, "site"))
			s.ok(t, "merge")
			sp, err := fsx.SpaceAt(vol)
			must(t, err)
			// Three layers of 64 in fp32: some 768 bytes a token, 40 tokens a sample.
			s.configure(t, strings.Replace(drillConfig, "reserve: 1MiB", fmt.Sprintf("dtype: fp32, proof: 50, reserve: %d", sp.Free-room), 1))
			for range 2 { // asking again is no other answer
				r := s.run(t, nil, "run")
				if r.code != 4 || !strings.Contains(r.err, "plan --accept") && !strings.Contains(r.err, "give the volume") {
					t.Fatalf("%v", r)
				}
				if made := !strings.Contains(want, "no proof"); made != strings.Contains(r.err, "sealed, every chunk checked") || !made && !strings.Contains(r.err, want) {
					t.Errorf("want %q:\n%s", want, r.err)
				}
			}
			gens, err := s.snapshot(t).Generations()
			must(t, err)
			last := gens[len(gens)-1]
			switch proof := last.Kind == "proof"; {
			case proof != (room > 500_000):
				t.Errorf("%+v", last)
			case proof && (last.Samples < 16 || last.Samples >= 50):
				t.Errorf("a proof of %d samples", last.Samples)
			}
		})
	}
}

// TestProofFitsAnyRoom: whatever the room, a proof that is begun is sealed, and
// the disk is not found too full for it. What comes after may find it so by a
// few blocks, where the plan fits by fewer.
func TestProofFitsAnyRoom(t *testing.T) {
	vol := smallVolume(t, 280<<20)
	s := newSite(t, filepath.Join(vol, "site"))
	codes := map[int]int{}
	for room := int64(100_000); room < 1_900_000; room += 150_000 {
		must(t, os.RemoveAll(s.work()))
		s.configure(t, strings.Replace(drillConfig, "reserve: 1MiB", "reserve: 0", 1))
		s.ok(t, "merge")
		s.ok(t, "shuffle")
		sp, err := fsx.SpaceAt(vol)
		must(t, err)
		s.configure(t, strings.Replace(drillConfig, "reserve: 1MiB", fmt.Sprintf("dtype: fp32, proof: 50, reserve: %d", sp.Free-room), 1))
		r := s.run(t, nil, "run")
		codes[r.code]++
		if r.code != 0 && r.code != 4 && (r.code != 28 || strings.Contains(r.err, "error: proof:")) {
			t.Errorf("with %d bytes of room: %v", room, r)
		}
		s.ok(t, "check", "--full")
	}
	if codes[4] == 0 || codes[0] == 0 {
		t.Errorf("ended with %v: both the least and the most room are to be met", codes)
	}
}

// TestDecisionReplaced: another decision says what it replaces, the same one
// changes nothing, and what is half done is given up only where that is said.
func TestDecisionReplaced(t *testing.T) {
	s := newSite(t, t.TempDir())
	for i := range 10 {
		p := filepath.Join(s.dir, "old", fmt.Sprintf("hs_%d.safetensors", i))
		must(t, os.MkdirAll(filepath.Dir(p), 0o777))
		must(t, os.WriteFile(p, make([]byte, 20_000), 0o666))
	}
	s.configure(t, strings.Replace(drillConfig, "256KiB", "20KiB", 1))
	s.ok(t, "merge")
	s.ok(t, "shuffle")
	s.ok(t, "generations", "adopt", filepath.Join(s.dir, "old"), "--name", "old-10k")
	s.ok(t, "plan", "--accept", "max_tokens=40")
	if r := s.ok(t, "plan", "--accept", "gc=old-10k,max_tokens=50"); !strings.Contains(r.err, "(max_tokens=40) is replaced by gc=old-10k, max_tokens=50") {
		t.Errorf("what is replaced is not said: %s", r.err)
	}
	if r := s.run(t, nil, "run", "--limit", "20"); r.code != 5 {
		t.Fatalf("%v", r)
	}
	half := len(s.gens(t, store.GenBuilding))
	if r := s.ok(t, "plan", "--accept", "max_tokens=50,gc=old-10k"); !strings.Contains(r.err, "recorded already") {
		t.Errorf("%v", r)
	}
	for _, args := range [][]string{{"--accept", "max_tokens=30"}, {"--withdraw"}} {
		r := s.run(t, nil, append([]string{"plan"}, args...)...)
		if r.code != 4 || !strings.Contains(r.err, "old-10k is deleted already") || !strings.Contains(r.err, "half built with") || !strings.Contains(r.err, "--replace") {
			t.Errorf("%v", r)
		}
	}
	if n := len(s.gens(t, store.GenBuilding)); half != 1 || n != 1 {
		t.Fatalf("%d, then %d generations are being built: the half-built one must stand", half, n)
	}
	s.ok(t, "plan", "--accept", "max_tokens=30", "--replace")
	if n := len(s.gens(t, store.GenAbandoned)); n != 1 {
		t.Errorf("%d generations are abandoned", n)
	}
	s.ok(t, "run")
	if r := s.ok(t, "plan", "--accept", "max_tokens=20"); !strings.Contains(r.err, "(max_tokens=30) is replaced by max_tokens=20") {
		t.Errorf("%v", r)
	}
	if r := s.ok(t, "plan", "--withdraw"); !strings.Contains(r.err, "(max_tokens=20) is forgotten") {
		t.Errorf("%v", r)
	}
	if r := s.ok(t, "plan", "--withdraw"); !strings.Contains(r.err, "no decision to forget") {
		t.Errorf("%v", r)
	}
}

// gens lists the generations of states in a state.
func (s site) gens(t *testing.T, state store.GenState) (out []store.GenerationRow) {
	t.Helper()
	all, err := s.snapshot(t).Generations()
	must(t, err)
	for _, g := range all {
		if g.State == state && g.Kind != "samples" {
			out = append(out, g)
		}
	}
	return out
}
