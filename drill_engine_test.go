package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// poison is a token that one sample of the drill has and no other.
const poison = 0

// engineSite is a site whose engine is to fail as faults says. The stall is
// long enough for a slow machine: an engine that is taken for dead too soon is
// blamed for the samples it had.
func engineSite(t *testing.T, dir, faults string) site {
	t.Helper()
	s := newSite(t, dir)
	path := filepath.Join(s.dir, "data", "B.jsonl")
	b, err := os.ReadFile(path)
	must(t, err)
	at := bytes.Index(b, []byte(`"input_ids":[`)) + len(`"input_ids":[`)
	must(t, os.WriteFile(path, append(append(bytes.Clone(b[:at]), fmt.Sprint(poison, ",")...), b[bytes.IndexByte(b[at:], ',')+at+1:]...), 0o666))
	s.engine(t, faults)
	return s
}

// engine sets what goes wrong, and other keys of extract.
func (s site) engine(t *testing.T, faults string, more ...string) {
	t.Helper()
	keys := append([]string{"memory: 256MiB", fmt.Sprintf("faults: %q", faults)}, more...)
	if !strings.Contains(strings.Join(more, " "), "stall") {
		keys = append(keys, "stall: 10s")
	}
	s.configure(t, strings.Replace(drillConfig, "memory: 256MiB", strings.Join(keys, ", "), 1))
}

// engineCase is a script of faults and what comes of it: the exit codes of run,
// of run again with a sound engine, and of a last command.
type engineCase struct {
	faults string
	code   int
	says   string   // on stderr
	more   []string // keys of extract
}

// transient faults change nothing but the time it takes.
func transient() (out []engineCase) {
	for _, f := range []string{"die", "short", "wrong-ids", "nan", "zero-row", "dup", "stray", "flaky"} {
		for _, n := range []int{2, 33, 61} { // 1 is the canary, 61 the last sample
			out = append(out, engineCase{faults: fmt.Sprintf("%s@%d", f, n)})
		}
	}
	return append(out,
		engineCase{faults: "hang@20"}, engineCase{faults: "lost@20"}, engineCase{faults: "out-of-order"},
		// One fault of a sample a run: a sample that fails twice is left out.
		engineCase{faults: "die@2,nan@3,out-of-order,dup@9,stray@18,die@19,flaky@44"},
		engineCase{faults: "die@9,nan@20,out-of-order", more: []string{"workers: 2"}},
		engineCase{faults: "hang@9", more: []string{"workers: 2"}},
	)
}

// lasting faults stop the run, which later goes on.
func lasting() []engineCase {
	return []engineCase{
		{faults: "unavailable", code: 20, says: "preflight: no engine for", more: []string{"patience: 300ms"}},
		{faults: "down=3", code: 20, says: "preflight"},
		{faults: "hang@1", code: 20, says: "no answer for 300ms", more: []string{"stall: 300ms"}},
		{faults: "drift@40", code: 20, says: "make no sense"},
		{faults: "die@1", code: 20, says: "died at request 1"},
	}
}

// TestDrillEngineFaults runs whole jobs on an engine that fails in every way
// that its script knows. What it returned wrongly is never stored: in the end
// there are the bytes of a run that never saw a fault.
func TestDrillEngineFaults(t *testing.T) {
	dir := scratch(t)
	ref := engineSite(t, filepath.Join(dir, "reference"), "")
	ref.ok(t, "run")
	want, states := ref.files(t), ref.values(t)
	t.Run("one fault", func(t *testing.T) {
		cases := transient()
		if testing.Short() {
			cases = []engineCase{cases[0], cases[5], cases[10], cases[len(cases)-3]}
		}
		engineCases(t, dir, cases, want)
	})
	t.Run("a dead engine", func(t *testing.T) { engineCases(t, dir, lasting(), want) })
	t.Run("an engine that does not come back", func(t *testing.T) { engineGone(t, filepath.Join(dir, "gone"), want) })
	for _, fault := range []string{"poison", "refuse"} {
		t.Run("a sample that is always a "+fault, func(t *testing.T) {
			quarantine(t, filepath.Join(dir, fault), fmt.Sprintf("%s=%d", fault, poison), states)
		})
	}
}

// engineCases runs each case to its end and then with a sound engine.
func engineCases(t *testing.T, dir string, cases []engineCase, want map[string]string) {
	for i, c := range cases {
		t.Run(c.faults, func(t *testing.T) {
			t.Parallel()
			s := engineSite(t, filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-"), fmt.Sprint(i)), c.faults)
			s.engine(t, c.faults, c.more...)
			bad := func(format string, args ...any) { t.Errorf(format, args...) }
			r := s.run(t, nil, "run")
			if r.code != c.code || !strings.Contains(r.err, c.says) {
				t.Fatalf("exit code %d and %q wanted: %v", c.code, c.says, r)
			}
			before := s.truth(t, bad)
			if c.code != 0 {
				s.engine(t, "")
				s.ok(t, "run")
			}
			after := s.truth(t, bad)
			before.kept(after, bad)
			after.finished(bad)
			s.ok(t, "check", "--full")
			if d := cmp.Diff(want, s.files(t)); d != "" {
				t.Errorf("files differ from the undisturbed run (-want +got):\n%s", d)
			}
			tally{tried: 1, survived: 1}.report(t, "engine: "+c.faults)
		})
	}
}

// engineGone: the engine is lost in the middle. The run ends once patience is
// over, keeps what is committed, and a later one resumes.
func engineGone(t *testing.T, dir string, want map[string]string) {
	s := engineSite(t, dir, "")
	bad := func(format string, args ...any) { t.Errorf(format, args...) }
	if r := s.run(t, nil, "run", "--limit", "20"); r.code != 5 {
		t.Fatalf("the limit: %v", r)
	}
	before := s.truth(t, bad)
	c := tally{}
	all := "poison=3"
	for id := 4; id < 400; id++ { // every sample has one of them
		all += fmt.Sprint(",poison=", id)
	}
	for _, faults := range []string{"unavailable", "down=100000", all} {
		s.engine(t, faults, "patience: 1s")
		r := s.run(t, nil, "extract")
		if c.tried++; r.code != 20 || !strings.Contains(r.err, "hint: ") {
			t.Fatalf("%.20s: exit code 20 wanted: %v", faults, r)
		}
		now := s.truth(t, bad)
		before.kept(now, bad)
		before, c.survived = now, c.survived+1
	}
	s.engine(t, "")
	fst := filepath.Join(dir, "fstrace")
	s.env = append(s.env, "EAGLEBATCH_FSTRACE="+fst)
	s.ok(t, "run")
	before.notAgain(readTrace(t, fst, s.work()), bad)
	s.truth(t, bad).finished(bad)
	if d := cmp.Diff(want, s.files(t)); d != "" {
		t.Errorf("files differ from the undisturbed run (-want +got):\n%s", d)
	}
	c.report(t, "engine: does not come back")
}

// quarantine: one sample always fails. It is left out and named, the rest is
// finished; once it does not fail any more, trying again completes the states.
func quarantine(t *testing.T, dir, faults string, want []string) {
	s := engineSite(t, dir, faults)
	r := s.run(t, nil, "run") // one sample of 60 is more than a percent
	if r.code != 1 || !strings.Contains(r.err, "nothing is sealed") || !strings.Contains(r.err, "hint: ") {
		t.Fatalf("too many: %v", r)
	}
	s.engine(t, faults, "max_quarantined: 2")
	r = s.run(t, nil, "run")
	if r.code != 3 || !strings.Contains(r.err, "extract --retry-quarantined") {
		t.Fatalf("exit code 3 and what to do wanted: %v", r)
	}
	s.ok(t, "check", "--full")
	if r := s.ok(t, "stat", "--json"); !strings.Contains(r.out, `"quarantined": 1`) {
		t.Errorf("stat: %v", r)
	}
	if n := len(s.values(t)); n != len(want)-1 {
		t.Errorf("%d positions, all but one of %d wanted", n, len(want))
	}
	if r := s.run(t, nil, "extract", "--retry-quarantined"); r.code != 3 {
		t.Fatalf("again, and it still fails: %v", r)
	}
	s.engine(t, "", "max_quarantined: 2")
	s.ok(t, "extract", "--retry-quarantined")
	s.ok(t, "check", "--full")
	if d := cmp.Diff(want, s.values(t)); d != "" {
		t.Errorf("states differ from those of a run without faults (-want +got):\n%s", d)
	}
	if r := s.ok(t, "run"); !strings.Contains(r.out, "nothing to do") {
		t.Errorf("run after it: %v", r)
	}
	tally{tried: 1, survived: 1}.report(t, "engine: "+faults)
}
