package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
)

// complain collects what is wrong.
type complain func(format string, args ...any)

// truth is what stat and the ledger say at a moment.
type truth struct {
	stat  *statFields
	seq   uint64
	blobs map[string]store.BlobRow
	rows  map[string]int64 // accepted by dataset
}

// statFields are the fields of stat --json that the drills hold it to.
type statFields struct {
	Live   bool
	Damage string
	Phases []struct {
		Name, State string
		Done, Total int64
	}
	Datasets []struct {
		Name                                         string
		Lines, Accepted, Duplicates, Blank, Rejected int64
	}
	Plan        *struct{ Samples int64 }
	Generations []struct {
		ID             int64
		State          string
		Samples, Blobs int64
	}
	Extract *struct {
		SamplesDone  int64 `json:"samples_done"`
		SamplesTotal int64 `json:"samples_total"`
	}
}

// truth asks stat, which must always answer, and holds it against the ledger.
func (s site) truth(t testing.TB, bad complain) truth {
	snap := s.snapshot(t)
	r := s.run(t, nil, "stat", "--json")
	if snap == nil {
		if r.code != 10 {
			bad("stat without a workspace: %v", r)
		}
		return truth{}
	}
	tr := truth{seq: snap.Seq, blobs: map[string]store.BlobRow{}, rows: map[string]int64{}}
	if r.code != 0 {
		bad("stat: %v", r)
		return tr
	}
	tr.stat = &statFields{}
	if err := json.Unmarshal([]byte(r.out), tr.stat); err != nil {
		bad("stat --json: %v", err)
		return tr
	}
	if tr.stat.Live || tr.stat.Damage != "" {
		bad("stat says live=%v, damage=%q of a process that has ended", tr.stat.Live, tr.stat.Damage)
	}
	gens, err := snap.Generations()
	must(t, err)
	for _, g := range gens {
		blobs, err := snap.Blobs(g.ID)
		must(t, err)
		for _, b := range blobs {
			tr.blobs[fmt.Sprintf("%06d/blob-%06d.ebb", b.Gen, b.No)] = b
			if g.State != store.GenSealed && g.State != store.GenBuilding {
				continue
			}
			// What the ledger acknowledges is there, whole.
			st, err := os.Stat(s.work("generations", fmt.Sprintf("%06d/blob-%06d.ebb", b.Gen, b.No)))
			if err != nil || st.Size() != b.Bytes {
				bad("blob %d of generation %d is in the ledger with %d bytes: %v", b.No, b.Gen, b.Bytes, err)
			}
		}
	}
	for _, d := range tr.stat.Datasets {
		tr.rows[d.Name] = d.Accepted
		if d.Lines != d.Accepted+d.Duplicates+d.Blank+d.Rejected {
			bad("stat: dataset %+v does not add up", d)
		}
	}
	if x := tr.stat.Extract; x != nil && x.SamplesDone > x.SamplesTotal {
		bad("stat: %d of %d samples extracted", x.SamplesDone, x.SamplesTotal)
	}
	return tr
}

// kept: what was acknowledged earlier still is.
func (before truth) kept(after truth, bad complain) {
	if after.seq < before.seq {
		bad("the ledger went back from step %d to %d", before.seq, after.seq)
	}
	for name, b := range before.blobs {
		if a, ok := after.blobs[name]; ok && !reflect.DeepEqual(a, b) {
			bad("%s was committed as %+v, now it is %+v", name, b, a)
		}
	}
	for name, n := range before.rows {
		if after.rows[name] < n {
			bad("dataset %s had %d samples, now %d", name, n, after.rows[name])
		}
	}
}

// finished: nothing is left half done.
func (after truth) finished(bad complain) {
	if after.stat == nil {
		bad("no stat at the end")
		return
	}
	for _, p := range after.stat.Phases {
		if p.State != "done" && p.State != "pending" || p.State == "done" && p.Done != p.Total {
			bad("stat: %+v at the end", p)
		}
	}
	for _, g := range after.stat.Generations {
		if g.State == "building" || g.State == "condemned" {
			bad("stat: generation %+v at the end", g)
		}
	}
}

// trace is the file operations of a child.
type trace []fsx.Op

// readTrace reads what EAGLEBATCH_FSTRACE recorded; paths become relative to
// the workspace.
func readTrace(t testing.TB, path, work string) (tr trace) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("%s: %q", path, line)
		}
		op := fsx.Op{Kind: fsx.Kind(f[0]), Path: strings.TrimPrefix(f[1], filepath.Clean(work)+"/")}
		if _, err := fmt.Sscan(f[2], &op.N); err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		tr = append(tr, op)
	}
	return tr
}

// count counts the operations of a kind on files whose path contains part.
func (tr trace) count(kind fsx.Kind, part string) (n int) {
	for _, op := range tr {
		if op.Kind == kind && strings.Contains(op.Path, part) {
			n++
		}
	}
	return n
}

// openBlobs is how many blobs one engine slot has begun and not committed at most.
const openBlobs = 4

// bounds: a kill costs at most the open blobs and one batch of the merge, and
// no blob is begun again that was in the ledger.
func (want trace) bounds(got trace, kills int, bad complain) {
	if n, most := got.count(fsx.OpCreate, ".ebb."), want.count(fsx.OpCreate, ".ebb.")+kills*openBlobs; n > most {
		bad("%d blobs begun, at most %d expected", n, most)
	}
	if n, most := got.count(fsx.OpWrite, "index.rows"), want.count(fsx.OpWrite, "index.rows")+2*kills; n > most {
		bad("%d batches of the merge, at most %d expected", n, most)
	}
}

// notAgain: the blobs that the ledger had at a moment are not begun later.
func (before truth) notAgain(later trace, bad complain) {
	for _, op := range later {
		gen, name := filepath.Split(op.Path)
		name, _, ok := strings.Cut(name, ".ebb.")
		key := filepath.Base(gen) + "/" + name + ".ebb"
		if _, had := before.blobs[key]; ok && had && op.Kind == fsx.OpCreate {
			bad("%s was in the ledger and is made again", key)
		}
	}
}
