package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fault"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// scenario is a command that is struck at every hit of every point.
type scenario struct {
	name    string
	args    []string
	resume  []string               // the command that goes on, once args has changed the ledger
	prepare func(*testing.T, site) // what is done before, undisturbed
	small   int64                  // size of the volume that it needs, bytes; 0: any
}

func scenarios() []scenario {
	sealed := func(t *testing.T, s site) { s.ok(t, "run") }
	return []scenario{
		{name: "merge, shuffle, plan, extract, seal", args: []string{"run"}, resume: []string{"run"}},
		{name: "another seed", args: []string{"run", "--redo", "shuffle"}, resume: []string{"run"}, prepare: func(t *testing.T, s site) {
			sealed(t, s)
			s.configure(t, strings.Replace(drillConfig, "seed: 42", "seed: 43", 1))
		}},
		{name: "redo extract", args: []string{"run", "--redo", "extract"}, resume: []string{"run"}, prepare: sealed},
		{name: "extract as fp8", args: []string{"run"}, resume: []string{"run"}, prepare: func(t *testing.T, s site) {
			s.configure(t, strings.Replace(drillConfig, "blob_size: 256KiB", "blob_size: 192KiB, dtype: fp8", 1))
			for _, phase := range []string{"merge", "shuffle", "plan"} {
				s.ok(t, phase)
			}
		}},
		{name: "another decision", args: []string{"plan", "--accept", "max_tokens=30,drop=B"}, prepare: func(t *testing.T, s site) {
			for _, args := range [][]string{{"merge"}, {"shuffle"}, {"plan", "--accept", "max_tokens=40"}} {
				s.ok(t, args...)
			}
		}},
		{name: "gc: condemn and trash", args: []string{"gc", "--apply", "--min-age", "24h"}, prepare: twoGenerations},
		{name: "gc: unlink", args: []string{"gc", "--apply"}, prepare: func(t *testing.T, s site) {
			twoGenerations(t, s)
			s.ok(t, "gc", "--apply", "--min-age", "24h")
		}},
		{name: "gc: at once", args: []string{"gc", "--apply", "--now", "--name", "gen-000002", "--yes", "gen-000002"}, prepare: twoGenerations},
		{name: "check --repair", args: []string{"check", "--repair"}, prepare: func(t *testing.T, s site) {
			sealed(t, s)
			storetest.FlipBit(t, s.work("generations/000002/blob-000001.ebb"), 4000)
		}},
		{name: "export", args: []string{"export", "--to", "jsonl", "--out", "out"}, prepare: sealed},
		{name: "compaction of the log", args: []string{"shuffle"}, prepare: func(t *testing.T, s site) {
			s.ok(t, "merge")
			inflate(t, s)
		}},
		{name: "gc: little room", args: []string{"gc", "--apply", "--min-age", "24h"}, prepare: twoGenerations, small: 31 << 20},
	}
}

// twoGenerations makes a second generation that shares nothing with the first.
func twoGenerations(t *testing.T, s site) {
	s.ok(t, "run")
	s.configure(t, strings.Replace(drillConfig, "layers: [2, 4, 8]", "layers: [1, 3, 8]", 1))
	s.ok(t, "run", "--redo", "plan")
}

// inflate makes a log that the next opening compacts.
func inflate(t *testing.T, s site) {
	ws := storetest.MustOpen(t, s.work())
	for _, v := range [][]byte{make([]byte, 1<<20), nil} {
		for i := range 8 {
			must(t, ws.Update(t.Context(), "drill", func(tx *store.Tx) error { return tx.PutValue(fmt.Sprint("drill/", i), v) }))
		}
	}
	must(t, ws.Close())
}

// strike is one fault of a scenario.
type strike struct {
	point fault.Point
	hit   int
	mode  string // kill or err
	again int    // the resume is killed at its again-th hit of any point
}

func (s strike) String() string { return fmt.Sprintf("%s %s:%d", s.mode, s.point, s.hit) }

// TestDrillEnumeration strikes each scenario at every hit of every point, once
// with an error and once with SIGKILL, kills the resume as well, and lets the
// third attempt finish: the files are those of the undisturbed run.
func TestDrillEnumeration(t *testing.T) {
	reached := map[fault.Point]bool{}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			defer func() {
				if t.Skipped() { // only a small volume has it given up
					reached[fault.ReserveBeforeUnlink] = true
				}
			}()
			e := newEnumeration(t, sc)
			for p := range e.hits {
				reached[p] = true
			}
			e.all(t).report(t, "enumeration: "+sc.name)
		})
	}
	for _, p := range fault.Points() {
		if !reached[p] {
			t.Errorf("no scenario reaches %s", p)
		}
	}
}

type enumeration struct {
	sc    scenario
	dir   string
	begin site              // before the scenario's command
	seq   uint64            // its ledger
	sound bool              // nothing in it is damaged
	want  map[string]string // files after it
	hits  map[fault.Point]int
	trace trace // of the undisturbed run
}

func newEnumeration(t *testing.T, sc scenario) *enumeration {
	e := &enumeration{sc: sc, hits: map[fault.Point]int{}, sound: true}
	if sc.small > 0 {
		e.dir, _ = mount(t, "tmpfs", "none", fmt.Sprintf("size=%d", sc.small))
	} else {
		e.dir = scratch(t)
	}
	e.begin = newSite(t, filepath.Join(e.dir, "begin"))
	if sc.prepare != nil {
		sc.prepare(t, e.begin)
	}
	if snap := e.begin.snapshot(t); snap != nil {
		e.seq = snap.Seq
		e.sound = copySite(t, e.begin, filepath.Join(e.dir, "sound")).run(t, nil, "check", "--full").code == 0
	}
	ref := copySite(t, e.begin, filepath.Join(e.dir, "reference"))
	hits, fst := filepath.Join(e.dir, "hits"), filepath.Join(e.dir, "fstrace")
	if r := ref.run(t, []string{"EAGLEBATCH_FAULT_HITS=" + hits, "EAGLEBATCH_FSTRACE=" + fst}, sc.args...); r.code != 0 {
		t.Fatalf("undisturbed: %v", r)
	}
	ref.ok(t, "check", "--full")
	e.want, e.trace = ref.files(t), readTrace(t, fst, ref.work())
	b, err := os.ReadFile(hits)
	must(t, err)
	for line := range strings.Lines(string(b)) {
		e.hits[fault.Point(strings.TrimSpace(line))]++
	}
	return e
}

// strikes lists the faults: all of them, or in short mode the first and the
// last hit of each point.
func (e *enumeration) strikes() (out []strike) {
	for _, p := range fault.Points() {
		n := e.hits[p]
		if p == fault.StatusBeforeRename {
			n = min(n, 3) // the clock decides how many there are
		}
		for hit := 1; hit <= n; hit++ {
			if testing.Short() && hit != 1 && hit != n {
				continue
			}
			i := len(out)
			out = append(out, strike{p, hit, "kill", 1 + i*7%41}, strike{p, hit, "err", 0})
		}
	}
	return out
}

// all runs the strikes, as many at a time as there are cores.
func (e *enumeration) all(t *testing.T) (c tally) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan strike)
	workers := runtime.GOMAXPROCS(0)
	if e.sc.small > 0 {
		workers = min(workers, 2) // each has a copy on the volume
	}
	for range workers {
		wg.Go(func() {
			for st := range work {
				problems := e.one(t, st)
				mu.Lock()
				c.tried++
				if len(problems) == 0 {
					c.survived++
				} else {
					c.lost++
					t.Errorf("%v: %s", st, strings.Join(problems, "\n"))
				}
				mu.Unlock()
			}
		})
	}
	for _, st := range e.strikes() {
		work <- st
	}
	close(work)
	wg.Wait()
	return c
}

// next is the command that goes on from what the ledger says.
func (e *enumeration) next(now truth) []string {
	if e.sc.resume != nil && now.seq > e.seq {
		return e.sc.resume
	}
	return e.sc.args
}

// one strikes once and returns what is wrong afterwards.
func (e *enumeration) one(t *testing.T, st strike) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	dir := filepath.Join(e.dir, strings.ReplaceAll(st.String(), " ", "-"))
	s := copySite(t, e.begin, dir)
	defer func() {
		if len(problems) == 0 || !keepDir {
			must(t, os.RemoveAll(dir))
		}
	}()
	fst := filepath.Join(dir, "fstrace-")
	kills := 1
	r := s.run(t, []string{fmt.Sprintf("EAGLEBATCH_FAULT=%s:%d:%s", st.point, st.hit, st.mode), "EAGLEBATCH_FSTRACE=" + fst + "1"}, e.sc.args...)
	switch exempt := st.point == fault.StatusBeforeRename; {
	case st.mode == "kill" && r.signal == syscall.SIGKILL:
	case st.mode == "err" && r.code > 0 && strings.Contains(r.err, "injected fault at "+string(st.point)):
	case exempt && r.code == 0: // advisory, and how often is up to the clock
	default:
		bad("the fault did not end the run as it should: %v", r)
	}
	before := s.truth(t, bad)
	if st.mode == "err" && before.stat != nil { // opens the workspace; after a kill the resume is to do that
		if r := s.run(t, nil, "check", "--full"); r.code != 0 && (r.code != 12 || e.sound) {
			bad("check --full of what the error left: %v", r)
		}
		before = s.truth(t, bad)
	}
	if st.again > 0 {
		s.run(t, []string{fmt.Sprintf("EAGLEBATCH_FAULT=*:%d:kill", st.again), "EAGLEBATCH_FSTRACE=" + fst + "2"}, e.next(before)...)
		now := s.truth(t, bad)
		before.kept(now, bad)
		before = now
		kills++
	}
	if r = s.run(t, []string{"EAGLEBATCH_FSTRACE=" + fst + "3"}, e.next(before)...); r.code != 0 {
		bad("the resumed run: %v", r)
		return problems
	}
	after := s.truth(t, bad)
	before.kept(after, bad)
	after.finished(bad)
	if r = s.run(t, nil, "check", "--full"); r.code != 0 {
		bad("check --full: %v", r)
	}
	if d := cmp.Diff(e.want, s.files(t)); d != "" {
		bad("files differ from the undisturbed run (-want +got):\n%s", d)
	}
	if left := s.temporary(t); len(left) > 0 {
		bad("left behind: %v", left)
	}
	var all trace
	for i := range 3 {
		if f := fmt.Sprint(fst, i+1); exists(f) {
			last := readTrace(t, f, s.work())
			all = append(all, last...)
			if i == 2 {
				before.notAgain(last, bad)
			}
		}
	}
	e.trace.bounds(all, kills, bad)
	return problems
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
