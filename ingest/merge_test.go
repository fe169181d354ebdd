package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"eaglebatch/internal/compress"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

func everything() human.Share { return human.Share{Fraction: 1, Relative: true} }

func write(t testing.TB, path string, text []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func packed(t testing.TB, f compress.Format, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := compress.NewWriter(&b, f)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// randomLines writes n lines, with duplicates, blanks and bad ones among them.
func randomLines(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 7))
	var b bytes.Buffer
	for i := range n {
		switch {
		case i%17 == 5:
			b.WriteString("  \n")
			continue
		case i%13 == 3:
			b.WriteString(`{"input_ids":[1,5000],"loss_mask":[0,1],"n":` + fmt.Sprint(i) + "}\n")
			continue
		case i%11 == 7:
			b.WriteString(`{"input_ids":[1,2],"loss_mask":[0,1]}` + "\n")
			continue
		}
		var ids, mask []string
		for k := range 3 + r.IntN(60) {
			ids = append(ids, fmt.Sprint(r.IntN(1000)))
			mask = append(mask, fmt.Sprint(b2i(k > 1)))
		}
		fmt.Fprintf(&b, `{"id":"%d-%d","input_ids":[%s],"loss_mask":[%s]}`+"\n", seed, i, strings.Join(ids, ","), strings.Join(mask, ", "))
	}
	return b.Bytes()
}

func options(sets ...Dataset) Options {
	return Options{Datasets: sets, VocabSize: 1000, MaxRejects: everything(), MinLossTokens: 1, Threads: 3, Memory: 64 << 20}
}

func mustMerge(t testing.TB, ws *store.Workspace, o Options) []store.DatasetRow {
	t.Helper()
	st, err := Run(context.Background(), ws, o, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	checkCounts(t, ws)
	return st.Datasets
}

// checkCounts holds the ledger to its law: every line is one of four things.
func checkCounts(t testing.TB, ws *store.Workspace) {
	t.Helper()
	err := ws.View(func(r store.Reader) error {
		rows, err := r.Datasets()
		for _, d := range rows {
			reasons := int64(0)
			for _, n := range d.Reasons {
				reasons += n
			}
			if d.Lines != d.Accepted+d.Duplicates+d.Blank+d.Rejected || reasons != d.Rejected {
				t.Errorf("dataset %s does not add up: %+v", d.Name, d)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// result is everything a merge leaves, in comparable form.
type result struct {
	Rows    []store.DatasetRow
	Samples []*samples.Sample
	Index   map[uint32]string
	Rejects map[string]string
}

func results(t testing.TB, ws *store.Workspace) result {
	t.Helper()
	res := result{Index: map[uint32]string{}, Rejects: map[string]string{}}
	err := ws.View(func(r store.Reader) (err error) {
		res.Rows, err = r.Datasets()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range res.Rows {
		st, err := samples.Open(ws.SamplesDir(d.SamplesGen), d.FirstRow+d.Accepted, samples.Options{Memory: 32 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Accepted {
			s, err := st.Get(context.Background(), d.ID, uint64(i))
			if err != nil {
				t.Fatal(err)
			}
			res.Samples = append(res.Samples, s)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(ws.SamplesDir(d.SamplesGen), "index.rows"))
		if err != nil {
			t.Fatal(err)
		}
		res.Index[d.SamplesGen] = string(b)
		b, err = os.ReadFile(ws.RejectsPath(d.Name))
		if err != nil {
			t.Fatal(err)
		}
		res.Rejects[d.Name] = string(b)
	}
	return res
}

func diff(a, b result) string {
	return cmp.Diff(a, b, cmpopts.IgnoreFields(store.SourceFile{}, "Path", "ModTime", "Size", "Hash"), cmpopts.IgnoreFields(store.DatasetRow{}, "Fingerprint", "RejectsBytes", "RejectsHash"))
}

// TestOddFile merges the odd cases and compares every line with its verdict.
func TestOddFile(t *testing.T) {
	cases, text := oddCases(t)
	ws := storetest.MustInit(t)
	path := write(t, filepath.Join(t.TempDir(), "odd.jsonl"), text)
	rows := mustMerge(t, ws, options(Dataset{Name: "odd", Paths: []string{path}}))
	byLine := map[int64]*samples.Sample{}
	for _, s := range results(t, ws).Samples {
		byLine[s.Line] = s
	}
	kept := map[int64]rejectLine{}
	f, err := os.Open(ws.RejectsPath("odd"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for d := json.NewDecoder(f); d.More(); {
		var l rejectLine
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		kept[l.Line] = l
		if l.File != path || !bytes.HasPrefix(text[l.Offset:], append(l.Base64, l.Text...)) || int(l.Bytes) != len(l.Text)+len(l.Base64) {
			t.Errorf("line %d is not what lies at %d of the source: %+v", l.Line, l.Offset, l)
		}
	}
	want := map[string]int64{}
	for _, c := range cases {
		want[c.Class]++
		s, r := byLine[int64(c.Line)], kept[int64(c.Line)]
		if (s != nil) != (c.Class == "accepted") || r.Reason != c.Reason {
			t.Errorf("line %d (%s): sample %v, kept as %q; want %s %q", c.Line, c.Name, s != nil, r.Reason, c.Class, c.Reason)
			continue
		}
		if s != nil && !cmp.Equal(s.IDs, c.IDs) {
			t.Errorf("line %d (%s): ids %v, want %v", c.Line, c.Name, s.IDs, c.IDs)
		}
	}
	d := rows[0]
	got := map[string]int64{"accepted": d.Accepted, "duplicate": d.Duplicates, "blank": d.Blank, "rejected": d.Rejected}
	if df := cmp.Diff(want, got); df != "" {
		t.Errorf("counts (-want +got):\n%s", df)
	}
	if id := byLine[13].ID; id != "7" {
		t.Errorf("numeric id stored as %q", id)
	}
}

// TestFormatsThreadsAndFiles: however the same lines are stored and however
// many parsers there are, the same is merged.
func TestFormatsThreadsAndFiles(t *testing.T) {
	text := randomLines(1, 3000)
	cut := bytes.IndexByte(text[len(text)/2:], '\n') + len(text)/2 + 1
	dir := t.TempDir()
	plain := write(t, filepath.Join(dir, "plain.jsonl"), text)
	var want result
	for i, c := range []struct {
		name    string
		paths   []string
		threads int
		block   int
	}{
		{"plain", []string{plain}, 1, 0},
		{"many parsers, small blocks", []string{plain}, 8, 4 << 10},
		{"gzip", []string{write(t, filepath.Join(dir, "gz", "a.jsonl.gz"), packed(t, compress.Gzip, text))}, 2, 64 << 10},
		{"zstd under another name", []string{write(t, filepath.Join(dir, "zst", "a.jsonl"), packed(t, compress.Zstd, text))}, 2, 0},
		{"lz4", []string{write(t, filepath.Join(dir, "lz4", "a.jsonl.lz4"), packed(t, compress.LZ4, text))}, 2, 0},
		{"two files in a directory", []string{filepath.Dir(write(t, filepath.Join(dir, "two", "1.jsonl"), text[:cut]))}, 2, 0},
	} {
		if c.name == "two files in a directory" {
			write(t, filepath.Join(dir, "two", "sub", "2.jsonl.gz"), packed(t, compress.Gzip, text[cut:]))
			write(t, filepath.Join(dir, "two", "notes.txt"), []byte("no dataset"))
		}
		ws := storetest.MustInit(t)
		o := options(Dataset{Name: "a", Paths: c.paths})
		o.Threads, o.blockSize = c.threads, c.block
		mustMerge(t, ws, o)
		got := results(t, ws)
		for p, r := range got.Rejects { // paths, and with several files places, differ
			got.Rejects[p] = fmt.Sprint(strings.Count(r, "\n"))
		}
		if c.name == "two files in a directory" {
			if n := got.Rows[0].Sources[0].Lines + got.Rows[0].Sources[1].Lines; n != got.Rows[0].Lines {
				t.Errorf("the files have %d lines, the dataset %d", n, got.Rows[0].Lines)
			}
			got.Rows[0].Sources = want.Rows[0].Sources
			for k, s := range got.Samples {
				s.File, s.Line = want.Samples[k].File, want.Samples[k].Line
			}
		}
		if i == 0 {
			want = got
			if n := want.Rows[0]; n.Duplicates == 0 || n.Blank == 0 || n.Rejected == 0 || n.Accepted < 2000 {
				t.Fatalf("poor test data: %+v", n)
			}
			continue
		}
		if d := diff(want, got); d != "" {
			t.Errorf("%s (-plain +here):\n%.3000s", c.name, d)
		}
	}
}

// TestCrashAnywhere fails at the k-th hit of any point for every k until a
// merge passes undisturbed, each time resuming; what is left must be the same.
func TestCrashAnywhere(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a.jsonl"), randomLines(1, 700))
	b := write(t, filepath.Join(dir, "b.jsonl.gz"), packed(t, compress.Gzip, randomLines(2, 500)))
	o := options(Dataset{Name: "a", Paths: []string{a}}, Dataset{Name: "b", Paths: []string{b}})
	o.blockSize, o.checkpointBytes = 8<<10, 60<<10
	undisturbed := storetest.MustInit(t)
	mustMerge(t, undisturbed, o)
	want := results(t, undisturbed)
	hit, some := map[fault.Point]bool{}, false
	for k := int64(1); ; k++ {
		ws := storetest.MustInitFS(t, filepath.Join(t.TempDir(), "work"), &fsx.FS{Faults: fault.New("*", k)})
		_, err := Run(context.Background(), ws, o, progress.Nop{})
		if err == nil {
			if k < 30 {
				t.Errorf("only %d points were passed", k-1)
			}
			break
		}
		if !errors.Is(err, fault.ErrInjected) {
			t.Fatalf("hit %d: %v", k, err)
		}
		for _, p := range fault.Points() {
			if strings.Contains(err.Error(), string(p)) {
				hit[p] = true
			}
		}
		dir := ws.Dir()
		if err := ws.Close(); err != nil && !errors.Is(err, fault.ErrInjected) {
			t.Fatal(err)
		}
		ws = storetest.MustOpen(t, dir)
		some = counted(t, ws) || some
		mustMerge(t, ws, o)
		got := results(t, ws)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("failed at hit %d and resumed (-undisturbed +here):\n%.3000s", k, d)
		}
		if err := ws.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []fault.Point{fault.SamplesBeforeBatch, fault.SamplesAfterBatch, fault.SamplesAfterIndex, fault.SamplesBeforeSeal, fault.MergeBeforeDataset, fault.MergeAfterDataset} {
		if !hit[p] {
			t.Errorf("%s was never hit", p)
		}
	}
	if !some {
		t.Error("no generation being built had samples")
	}
}

func TestDuplicatesAcrossDatasets(t *testing.T) {
	dir := t.TempDir()
	line := `{"id":"%s","input_ids":[1,2,3],"loss_mask":[0,1,1]}` + "\n"
	other := `{"input_ids":[1,2,3],"loss_mask":[0,0,1]}` + "\n" // another mask is another sample
	a := write(t, filepath.Join(dir, "a.jsonl"), fmt.Appendf(nil, line, "a"))
	b := write(t, filepath.Join(dir, "b.jsonl"), fmt.Appendf(nil, line+other, "b"))
	o := options(Dataset{Name: "a", Paths: []string{a}}, Dataset{Name: "b", Paths: []string{b}})
	rows := mustMerge(t, storetest.MustInit(t), o)
	if rows[0].Accepted != 1 || rows[1].Accepted != 1 || rows[1].Duplicates != 1 {
		t.Errorf("rows %+v", rows)
	}
	o.Dedup = DedupNone
	rows = mustMerge(t, storetest.MustInit(t), o)
	if rows[1].Accepted != 2 || rows[1].Duplicates != 0 {
		t.Errorf("without dedup: %+v", rows)
	}
}

// TestAppendedDataset: a dataset added later is merged alone, into a
// generation of its own, and its duplicates of earlier ones are found.
func TestAppendedDataset(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a.jsonl"), randomLines(1, 300))
	b := write(t, filepath.Join(dir, "b.jsonl"), append(randomLines(1, 50), randomLines(3, 100)...))
	ws := storetest.MustInit(t)
	o := options(Dataset{Name: "a", Paths: []string{a}})
	first := mustMerge(t, ws, o)[0]
	if err := os.Remove(a); err != nil { // a finished merge needs its sources no more
		t.Fatal(err)
	}
	o.Datasets = append(o.Datasets, Dataset{Name: "b", Paths: []string{b}})
	rows := mustMerge(t, ws, o)
	if d := cmp.Diff(first, rows[0]); d != "" {
		t.Errorf("the first dataset changed:\n%s", d)
	}
	if rows[1].SamplesGen == first.SamplesGen || rows[1].FirstRow != 0 || rows[1].Duplicates < 40 {
		t.Errorf("second dataset %+v", rows[1])
	}
	err := ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		if len(gens) != 2 {
			t.Errorf("%d generations, want 2", len(gens))
		}
		for i, g := range gens {
			if g.Kind != KindSamples || g.State != store.GenSealed || g.ID != rows[i].SamplesGen || g.Samples != rows[i].Accepted || g.Bytes == 0 {
				t.Errorf("generation %+v", g)
			}
			if n, ok, err := samples.Sealed(ws.GenerationDir(g)); n != g.Samples || !ok || err != nil {
				t.Errorf("seal of %s: %d %v %v", g.Path, n, ok, err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
