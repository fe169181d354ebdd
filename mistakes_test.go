package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRedoMergeNeedsSources: what is merged is not given up for sources that
// are gone.
func TestRedoMergeNeedsSources(t *testing.T) {
	config, _ := quickstart(t)
	eagle(t, "merge", "-q", "-c", config).want(t, 0)
	src := filepath.Join(filepath.Dir(config), "data", "A_chat", "tokenized_data.jsonl")
	if err := os.Remove(src); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config, "--redo", "merge").want(t, 1).says(t, "A_chat", "no files there", "what is merged is kept")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
}

// TestLostBlobIsComputedAnew: a new order over a generation that has lost a
// blob points to what is left of it.
func TestLostBlobIsComputedAnew(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	if err := os.Remove(filepath.Join(work, "generations", "000002", "blob-000003.ebb")); err != nil {
		t.Fatal(err)
	}
	eagle(t, "check", "-q", "-c", config).want(t, 12)
	eagle(t, "run", "-c", config, "--backend", "synthetic", "--seed", "7", "--redo", "shuffle").want(t, 0).says(t, "blob-000003.ebb", "computed anew")
	s := statOf(t, config)
	if s.Plan.NewSamples == 0 || s.Plan.Reused == 0 {
		t.Errorf("%d new and %d reused", s.Plan.NewSamples, s.Plan.Reused)
	}
	eagle(t, "check", "--full", "-q", "-c", config, "3").want(t, 0)
	eagle(t, "compare", "-q", "-c", config, "3", "3").want(t, 0)
}

// TestStatSeesMergedSince: stat does not call a workspace done while samples
// that were merged later are in no order.
func TestStatSeesMergedSince(t *testing.T) {
	config, _ := quickstart(t)
	const line = "  - {name: C_tools, path: data/C_tools}\n"
	whole, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, config, line, "")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	if err := os.WriteFile(config, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 4)
	s := statOf(t, config)
	for _, p := range s.Phases {
		if want := map[bool]string{true: "done", false: "stale"}[p.Name == "merge"]; p.State != want {
			t.Errorf("%s is %s, want %s", p.Name, p.State, want)
		}
	}
	if !strings.Contains(s.Next, "run --redo shuffle") {
		t.Errorf("next: %s", s.Next)
	}
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic", "--redo", "shuffle").want(t, 0)
	if s := statOf(t, config); !strings.Contains(s.Next, "nothing is left to do") {
		t.Errorf("next: %s", s.Next)
	}
}

// TestHintsRepeatWhatWasAsked: a printed command does what the refused one
// would have done.
func TestHintsRepeatWhatWasAsked(t *testing.T) {
	config, _ := quickstart(t)
	args := []string{"run", "-q", "-c", config, "--backend", "synthetic"}
	eagle(t, args...).want(t, 0)
	eagle(t, append(args, "--seed", "7", "--set", "plan.layers=[2,4]")...).want(t, 4).
		says(t, "hint: eaglebatch run --redo shuffle --seed 7 --backend synthetic --set 'plan.layers=[2,4]' -c "+config)
	eagle(t, "merge", "-q", "-c", config, "--work", t.TempDir(), "--max-rejects", "0").want(t, 4).
		says(t, "hint: eaglebatch merge --accept-rejects", "-c "+config)
	eagle(t, "export", "-c", config, "--to", "jsonl").want(t, 2).says(t, "--out PATH")
	eagle(t, append(args, "--redo", "extract", "--limit", "1")...).want(t, 5).
		says(t, "eaglebatch: stopped as asked; what was committed is kept", "resumes (with --redo it would begin anew)")
}

// TestCheckNamesWhatIsGone: every file that something reads is missed, and the
// way out is the one for that file.
func TestCheckNamesWhatIsGone(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	for name, way := range map[string]string{
		"orders/000001.ebo":                "run --redo shuffle",
		"plans/000001.ebi":                 "run --redo plan",
		"manifest.db":                      "check --rebuild-manifest",
		"checkpoints.jsonl":                "check --rebuild-log",
		"samples/000001/index.rows":        "run --redo merge",
		"samples/000001/SEALED":            "run --redo merge",
		"samples/000001/db":                "run --redo merge",
		"generations/000002/index.ebi":     "check --repair",
		"generations/000002/plan.ebi":      "check --repair",
		"generations/000002/MANIFEST.json": "check --repair",
	} {
		path := filepath.Join(work, name)
		if err := os.Rename(path, path+"~"); err != nil {
			t.Fatal(err)
		}
		r := eagle(t, "check", "-q", "-c", config)
		if r.code != 12 || !strings.Contains(r.out, filepath.Dir(name)) || !strings.Contains(r.err, way) {
			t.Errorf("without %s: exit code %d\nstdout: %s\nstderr: %s", name, r.code, r.out, r.err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
}

// TestCheckReadOnly: a copy that nobody may write can be checked.
func TestCheckReadOnly(t *testing.T) {
	vol := smallVolume(t, 256<<20)
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic", "--dtype", "bf16").want(t, 0)
	to := filepath.Join(vol, "work")
	if err := os.CopyFS(to, os.DirFS(work)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", vol, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check"}, {"check", "--full"}, {"stat"}, {"cat", "2:0"}} {
		eagle(t, append(args, "-c", config, "--work", to)...).want(t, 0)
	}
}

// TestQuickCheckKeepsTheCursor: only a full check that ends makes an interrupted
// one forgotten.
func TestQuickCheckKeepsTheCursor(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	cursor := filepath.Join(work, "logs", "check.json")
	if err := os.MkdirAll(filepath.Dir(cursor), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cursor, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {"--sample", "1/2"}, {"--full", "2"}} {
		eagle(t, append([]string{"check", "-q", "-c", config}, args...)...).want(t, 0)
		if _, err := os.Stat(cursor); err != nil {
			t.Errorf("check %v: %v", args, err)
		}
	}
	eagle(t, "check", "-q", "-c", config, "--full", "--resume").want(t, 0)
	if _, err := os.Stat(cursor); err == nil {
		t.Error("a full check that ended left its cursor")
	}
}

// TestAuditOfWeights: the books hold every merged sample under weights and
// splits too.
func TestAuditOfWeights(t *testing.T) {
	config, _ := quickstart(t)
	edit(t, config, "tokenized_data.jsonl}", "tokenized_data.jsonl, weight: 0.5, eval: 7}")
	edit(t, config, "data/C_tools}", "data/C_tools, weight: 2.5}")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic").want(t, 0)
	r := eagle(t, "audit", "-c", config).want(t, 0)
	if !strings.Contains(r.out, "merged samples") || !strings.Contains(r.out, "repeated by weights") {
		t.Errorf("the books:\n%s", r.out)
	}
	if strings.Contains(r.out, " 0 subsampled") || strings.Contains(r.out, " 0 repeated by weights") {
		t.Errorf("nothing was weighted:\n%s", r.out)
	}
}

// TestMistakesAreNamed: what cannot be done says why, with the code for it.
func TestMistakesAreNamed(t *testing.T) {
	config, work := quickstart(t)
	eagle(t, "run", "-q", "-c", config, "--set", "merge.vocab_size=1001").want(t, 2).says(t, "the model knows ids 0 to 999")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic", "--max-tokens", "2").want(t, 2).says(t, "the plan holds no sample", "emptied by the cap of 2 tokens", "hint: raise plan.max_tokens")
	eagle(t, "run", "-q", "-c", config, "--backend", "synthetic", "--redo", "plan").want(t, 0)
	eagle(t, "cat", "-c", config, "2:363").want(t, 2).says(t, "positions 0 to 362")
	eagle(t, "cat", "-c", config, "9:0").want(t, 2).says(t, `no generation "9"`)
	index := filepath.Join(work, "generations", "000002", "index.ebi")
	if err := os.Rename(index, index+"~"); err != nil {
		t.Fatal(err)
	}
	eagle(t, "cat", "-c", config, "2:0").want(t, 12)
	if err := os.Remove(filepath.Join(work, "checkpoints.jsonl")); err != nil {
		t.Fatal(err)
	}
	eagle(t, "cat", "-c", config, "2:0").want(t, 12).says(t, "check --rebuild-log")
	eagle(t, "stat", "-c", config).want(t, 12).says(t, "check --rebuild-log")
}

// TestAdoptedIsGone: old states that somebody deleted by hand are named, with
// the way on.
func TestAdoptedIsGone(t *testing.T) {
	config, _ := quickstart(t)
	old := filepath.Join(filepath.Dir(config), "old")
	edit(t, config, "extract: {", "gc: {adopt: [{name: old, path: old}]}\nextract: {")
	args := []string{"run", "-q", "-c", config, "--backend", "synthetic"}
	eagle(t, args...).want(t, 2).says(t, "gc.adopt: old:", "take old out of gc.adopt")
	if err := os.Mkdir(old, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, "data_0.ckpt"), []byte("states"), 0o666); err != nil {
		t.Fatal(err)
	}
	eagle(t, args...).want(t, 0)
	eagle(t, "plan", "-q", "-c", config, "--withdraw").want(t, 0)
	if err := os.RemoveAll(old); err != nil {
		t.Fatal(err)
	}
	eagle(t, "plan", "-q", "-c", config, "--set", "extract.backend=synthetic", "--accept", "gc=old").want(t, 0)
	eagle(t, args...).want(t, 1).says(t, "its directory is missing", "plan --withdraw -c "+config)
	eagle(t, "plan", "-q", "-c", config, "--set", "extract.backend=synthetic", "--withdraw").want(t, 0)
	eagle(t, args...).want(t, 0)
}

// TestRedoIsNotRepeated: what is said to resume a run with --redo does, and does not
// redo again.
func TestRedoIsNotRepeated(t *testing.T) {
	config, _ := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config, "--redo", "plan", "--limit", "20", "--memory", "512MiB").want(t, 5).
		says(t, "hint: eaglebatch run --memory 512MiB -c "+config+" resumes (with --redo it would begin anew)")
	done := statOf(t, config).Extract.SamplesDone
	eagle(t, "run", "-q", "-c", config, "--memory", "512MiB").want(t, 0)
	if s := statOf(t, config); done < 20 || len(s.Generations) != 1 || s.Generations[0].State != "sealed" {
		t.Errorf("%d samples were done, then %+v", done, s.Generations)
	}
}
