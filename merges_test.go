package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestManyMerges: a workspace whose datasets were merged one by one, into a
// generation each, is extracted and exported by a process that may not have all of
// their files open at once.
func TestManyMerges(t *testing.T) {
	const n = 30
	s := newSite(t, t.TempDir())
	sets := ""
	for i := range n {
		name := fmt.Sprintf("D%02d", i)
		line, err := json.Marshal(map[string]any{"id": name, "input_ids": []int{5 + i, 6, 7, 8}, "loss_mask": []int{0, 1, 1, 1}})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(s.dir, "data", name+".jsonl"), append(line, '\n'), 0o666))
		sets += fmt.Sprintf("  - {name: %s, path: data/%s.jsonl}\n", name, name)
		head, rest, _ := strings.Cut(drillConfig, "  - {name: A")
		_, rest, _ = strings.Cut(rest, "model:")
		s.configure(t, head+sets+"model:"+rest)
		eagle(t, "merge", "-q", "-c", filepath.Join(s.dir, "eaglebatch.yaml")).want(t, 0)
	}
	limited := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := s.command(ctx, nil, args...)
		cmd.Args = append([]string{"sh", "-c", `ulimit -n 100 && exec "$@"`, "sh", cmd.Path}, args...)
		cmd.Path = "/bin/sh"
		if r, err := finish(cmd); err != nil || r.code != 0 {
			t.Fatalf("eaglebatch %v: %v %v", args, err, r)
		}
	}
	limited("run")
	limited("export", "--to", "jsonl", "--out", "all.jsonl")
	limited("run", "--redo", "extract")
	out, err := os.ReadFile(filepath.Join(s.dir, "all.jsonl"))
	must(t, err)
	var ids []string
	for line := range strings.Lines(string(out)) {
		var r struct{ ID string }
		must(t, json.Unmarshal([]byte(line), &r))
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != n {
		t.Errorf("%d different samples are exported, want %d", len(ids), n)
	}
}
