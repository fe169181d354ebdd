package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"eaglebatch/internal/fsx"
)

// artefact is a kind of file and the order in which it has to come about.
type artefact struct {
	name string
	path *regexp.Regexp // of the finished file, in the workspace
	// ledger: a commit must follow the rename before the next artefact of
	// this kind is published.
	ledger bool
}

func artefacts() []artefact {
	return []artefact{
		{"checkpoints.jsonl", regexp.MustCompile(`^checkpoints\.jsonl$`), false},
		{"marker", regexp.MustCompile(`^EAGLEBATCH$`), false},
		{"reserve", regexp.MustCompile(`^reserve\.bin$`), false},
		{"seal of the samples", regexp.MustCompile(`^samples/\d+/SEALED$`), true},
		{"list of the samples' files", regexp.MustCompile(`^samples/\d+/db\.json$`), false},
		{"order", regexp.MustCompile(`^orders/\d+\.ebo$`), true},
		{"plan", regexp.MustCompile(`^plans/\d+\.ebi$`), true},
		{"plan of a generation", regexp.MustCompile(`^generations/\d+/plan\.ebi$`), true},
		{"blob", regexp.MustCompile(`^generations/\d+/blob-\d+\.ebb$`), true},
		{"index of a generation", regexp.MustCompile(`^generations/\d+/index\.ebi$`), true},
		{"target head", regexp.MustCompile(`^generations/\d+/target_head\.safetensors$`), true},
		{"MANIFEST.json", regexp.MustCompile(`^generations/\d+/MANIFEST\.json$`), true},
	}
}

// TestDrillOrder records every file operation of a run with a real engine and
// asserts, for each kind of file: write, fsync, rename, fsync of the
// directory, and only then the ledger; and that everything was durable that
// the ledger speaks of.
func TestDrillOrder(t *testing.T) {
	model, err := filepath.Abs("fixtures/models/tiny-llama")
	must(t, err)
	s := newSite(t, scratch(t))
	s.configure(t, strings.NewReplacer("./model", model, "backend: synthetic", "backend: native, min_top1: 0").Replace(drillConfig))
	fst := filepath.Join(s.dir, "fstrace")
	s.env = append(s.env, "EAGLEBATCH_FSTRACE="+fst)
	s.ok(t, "run")
	tr := readTrace(t, fst, s.work())
	var c tally
	for _, a := range artefacts() {
		published := 0
		for i, op := range tr {
			if op.Kind == fsx.OpRename && a.path.MatchString(op.Path) {
				published++
				tr.assertPublished(t, i, a)
			}
		}
		c.tried += published
		if published == 0 {
			t.Errorf("%s: none was published", a.name)
		}
	}
	c.tried += tr.assertCommits(t)
	c.survived = c.tried
	c.report(t, "order of operations")
}

// assertPublished: the file of the rename at i was written, then synced, then
// closed, renamed, and its directory synced before anything was committed.
func (tr trace) assertPublished(t *testing.T, i int, a artefact) {
	t.Helper()
	path := tr[i].Path
	written, synced, closed := -1, -1, -1
	tmp := ""
	for j := i - 1; j >= 0 && tmp == ""; j-- {
		if op := tr[j]; op.Kind == fsx.OpClose && strings.HasPrefix(op.Path, path+".") && strings.HasSuffix(op.Path, fsx.TempSuffix) {
			tmp, closed = op.Path, j
		}
	}
	for j := range i {
		switch op := tr[j]; {
		case op.Path != tmp:
		case op.Kind == fsx.OpWrite, op.Kind == fsx.OpTrunc:
			written = j
		case op.Kind == fsx.OpSync:
			synced = j
		}
	}
	if written < 0 && a.name == "reserve" {
		written = 0 // allocated, not written
	}
	if tmp == "" || written < 0 || synced < written || closed < synced {
		t.Errorf("%s %s: renamed without write (%d), fsync (%d), close (%d) before", a.name, path, written, synced, closed)
	}
	dirs, commits := -1, -1
	for j := i + 1; j < len(tr) && commits < 0; j++ {
		switch op := tr[j]; {
		case op.Kind == fsx.OpSyncDir && dirs < 0 && (op.Path == filepath.Dir(path) || filepath.Dir(path) == "." && filepath.Base(op.Path) == "work"):
			dirs = j
		case op.Kind == fsx.OpCommit:
			commits = j
		}
	}
	if dirs < 0 || commits >= 0 && commits < dirs {
		t.Errorf("%s %s: its directory is not synced before the next commit (dirsync %d, commit %d)", a.name, path, dirs, commits)
	}
	if a.ledger && commits < 0 {
		t.Errorf("%s %s: no commit follows", a.name, path)
	}
}

// assertCommits: before each commit of the ledger its line is appended and
// synced, and no file that has its final name has bytes written but not
// synced. It returns the number of commits.
func (tr trace) assertCommits(t *testing.T) (commits int) {
	t.Helper()
	dirty := map[string]int{}
	line := -1
	for i, op := range tr {
		switch op.Kind {
		case fsx.OpWrite, fsx.OpTrunc:
			dirty[op.Path] = i
			if op.Path == "checkpoints.jsonl" {
				line = -1
			}
		case fsx.OpSync:
			delete(dirty, op.Path)
			if op.Path == "checkpoints.jsonl" {
				line = i
			}
		case fsx.OpCommit:
			if op.Path != "manifest.db" {
				continue // made anew, under a temporary name
			}
			commits++
			if line < 0 {
				t.Errorf("commit %d: no line in checkpoints.jsonl was synced for it", i)
			}
			line = -1 // the next one needs its own
			for path, at := range dirty {
				if exempt := path == "run.lock" || strings.HasPrefix(path, "status.json") || strings.HasSuffix(path, fsx.TempSuffix); !exempt {
					t.Errorf("commit %d: %s was written (%d) and is not synced", i, path, at)
				}
			}
		}
	}
	return commits
}
