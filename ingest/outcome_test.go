package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/compress"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func run(ws *store.Workspace, o Options) error {
	_, err := Run(context.Background(), ws, o, progress.Nop{})
	return err
}

func wants(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v, want one with %q", err, w)
		}
	}
}

// TestTooManyRejects waits for a decision at the end of the dataset that has
// too many, and goes on, without reading it again, once there is one.
func TestTooManyRejects(t *testing.T) {
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good.jsonl"), []byte(`{"input_ids":[1,2],"loss_mask":[0,1]}`+"\n"))
	bad := write(t, filepath.Join(dir, "bad.jsonl"), []byte(`{"input_ids":[3,4],"loss_mask":[0,1]}`+"\n"+strings.Repeat("nonsense\n", 7)))
	last := write(t, filepath.Join(dir, "last.jsonl"), []byte(`{"input_ids":[5,6],"loss_mask":[0,1]}`+"\n"))
	o := options(Dataset{Name: "good", Paths: []string{good}}, Dataset{Name: "bad", Paths: []string{bad}}, Dataset{Name: "last", Paths: []string{last}})
	o.MaxRejects = human.Share{Fraction: 0.5, Relative: true}
	ws := storetest.MustInit(t)
	var d *store.DecisionError
	for range 2 { // asking again changes nothing
		if err := run(ws, o); !errors.As(err, &d) || !errors.Is(err, store.ErrDecision) {
			t.Fatalf("error %v, want a decision", err)
		}
	}
	wants(t, d, `"bad"`, "7 of 8")
	if text := strings.Join(d.Details, "\n"); !strings.Contains(text, bad+":2: offset 38: malformed") || !strings.Contains(text, "malformed 7") {
		t.Errorf("details:\n%s", text)
	}
	if d.Commands[0] != "eaglebatch merge --accept-rejects bad" {
		t.Errorf("commands %q", d.Commands)
	}
	if err := os.Remove(bad); err != nil { // it is merged: nothing reads it again
		t.Fatal(err)
	}
	if err := AcceptRejects(context.Background(), ws, "nosuch"); err == nil {
		t.Error("rejects of an unknown dataset were accepted")
	}
	if err := AcceptRejects(context.Background(), ws, "bad"); err != nil {
		t.Fatal(err)
	}
	rows := mustMerge(t, ws, o)
	if len(rows) != 3 || !rows[1].Done || rows[1].Rejected != 7 || !rows[2].Done {
		t.Errorf("rows %+v", rows)
	}

	write(t, bad, []byte(`{"input_ids":[3,4],"loss_mask":[0,1]}`+"\n"+strings.Repeat("nonsense\n", 7)))
	ws = storetest.MustInit(t)
	o.MaxRejects = human.Share{Absolute: 6}
	if err := run(ws, o); !errors.As(err, &d) {
		t.Fatalf("error %v, want a decision", err)
	}
	o.MaxRejects = human.Share{Absolute: 7} // raising the limit decides too
	mustMerge(t, ws, o)
}

func TestReset(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.jsonl"), randomLines(1, 100))
	ws := storetest.MustInit(t)
	o := options(Dataset{Name: "a", Paths: []string{path}})
	before := mustMerge(t, ws, o)[0]
	if err := Reset(context.Background(), ws); err != nil {
		t.Fatal(err)
	}
	after := mustMerge(t, ws, o)[0]
	if after.ID == before.ID || after.SamplesGen == before.SamplesGen {
		t.Errorf("numbers were given twice: %+v after %+v", after, before)
	}
	if after.Accepted != before.Accepted || after.Rejected != before.Rejected {
		t.Errorf("another outcome: %+v after %+v", after, before)
	}
	err := ws.View(func(r store.Reader) error {
		g, ok, err := r.Generation(before.SamplesGen)
		if !ok || g.State != store.GenRetired {
			t.Errorf("the old generation is %+v", g)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSourceChanges: a file that is not the one begun with is refused.
func TestSourceChanges(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "a.jsonl"), randomLines(1, 400))
	o := options(Dataset{Name: "a", Paths: []string{path}})
	o.blockSize, o.checkpointBytes = 4<<10, 8<<10
	ws := storetest.MustInitFS(t, filepath.Join(dir, "work"), &fsx.FS{Faults: fault.New(fault.SamplesBeforeBatch, 4)})
	if err := run(ws, o); !errors.Is(err, fault.ErrInjected) {
		t.Fatal(err)
	}
	fp := mustFingerprint(t, ws, o)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, append(text, randomLines(2, 10)...))
	wants(t, run(ws, o), path, "changed while it was being merged", "run --redo merge")
	if now := mustFingerprint(t, ws, o); cmp.Equal(fp, now) {
		t.Error("the fingerprint did not notice")
	}
}

func mustFingerprint(t testing.TB, ws *store.Workspace, o Options) (fp []store.Part) {
	t.Helper()
	err := ws.View(func(r store.Reader) (err error) {
		fp, err = Fingerprint(context.Background(), r, o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return fp
}

// fingerprints compares with the fingerprint that a merge began with.
type fingerprints struct {
	t     *testing.T
	ws    *store.Workspace
	fresh []store.Part
}

func (f fingerprints) same(name string, o Options) {
	f.t.Helper()
	if d := cmp.Diff(f.fresh, mustFingerprint(f.t, f.ws, o)); d != "" {
		f.t.Errorf("%s (-before +after):\n%s", name, d)
	}
}

func (f fingerprints) differs(name string, o Options, key string) {
	f.t.Helper()
	var changed []string
	for i, p := range mustFingerprint(f.t, f.ws, o) {
		if i < len(f.fresh) && p != f.fresh[i] {
			changed = append(changed, p.Key)
		}
	}
	if d := cmp.Diff([]string{key}, changed); d != "" {
		f.t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

// TestFingerprintOfOptions: what changes the merge changes it, what does not
// does not.
func TestFingerprintOfOptions(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a.jsonl"), randomLines(1, 50))
	b := write(t, filepath.Join(dir, "b.jsonl"), randomLines(3, 50))
	ws := storetest.MustInit(t)
	o := options(Dataset{Name: "a", Paths: []string{a}})
	f := fingerprints{t, ws, mustFingerprint(t, ws, o)}
	mustMerge(t, ws, o)
	f.same("merging", o)
	other := o
	other.Threads, other.Memory, other.MaxRejects = 1, 1<<30, human.Share{}
	f.same("threads, memory and max_rejects", other)
	other = o
	other.VocabSize = 2000
	f.differs("vocabulary", other, "vocab_size")
	more := o
	more.Datasets = append(more.Datasets, Dataset{Name: "b", Paths: []string{b}})
	if fp := mustFingerprint(t, ws, more); len(fp) != len(f.fresh)+1 || !cmp.Equal(fp[:len(f.fresh)], f.fresh) {
		t.Errorf("appending a dataset: %v", fp)
	}
}

// TestFingerprintOfSources: content counts, times and directories do not.
func TestFingerprintOfSources(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a", "1.jsonl"), randomLines(1, 50))
	write(t, filepath.Join(dir, "a", "2.jsonl"), randomLines(2, 50))
	ws := storetest.MustInit(t)
	o := options(Dataset{Name: "a", Paths: []string{filepath.Dir(a)}})
	f := fingerprints{t, ws, mustFingerprint(t, ws, o)}
	mustMerge(t, ws, o)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(a, later, later); err != nil {
		t.Fatal(err)
	}
	f.same("a touched file", o)
	moved := filepath.Join(dir, "moved")
	if err := os.Rename(filepath.Dir(a), moved); err != nil {
		t.Fatal(err)
	}
	f.same("the directory is gone", o)
	o.Datasets[0].Paths = []string{moved}
	f.same("it was moved", o)
	text, err := os.ReadFile(filepath.Join(moved, "1.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(moved, "1.jsonl"), bytes.Replace(text, []byte("0"), []byte("1"), 1))
	f.differs("another content of the same size", o, "dataset a")
	write(t, filepath.Join(moved, "1.jsonl"), text)
	f.same("it was put back", o)
	write(t, filepath.Join(moved, "0.jsonl"), randomLines(9, 5))
	f.differs("a file more", o, "dataset a")
	if err := os.Remove(filepath.Join(moved, "0.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(moved, "2.jsonl")); err != nil {
		t.Fatal(err)
	}
	f.same("one of the merged files is gone", o)
}

// TestLinks: a directory may be given by a link; a link to one below it is
// named, not left out.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	if err := os.Mkdir(real, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(real, "a.jsonl"), randomLines(1, 5))
	link := filepath.Join(dir, "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	rows := mustMerge(t, storetest.MustInit(t), options(Dataset{Name: "a", Paths: []string{link}}))
	if p := rows[0].Sources[0].Path; p != filepath.Join(link, "a.jsonl") || rows[0].Lines != 5 {
		t.Errorf("%d lines of %s", rows[0].Lines, p)
	}
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(other, "b.jsonl"), randomLines(2, 5))
	if err := os.Symlink(real, filepath.Join(other, "more")); err != nil {
		t.Fatal(err)
	}
	err := run(storetest.MustInit(t), options(Dataset{Name: "a", Paths: []string{other}}))
	wants(t, err, filepath.Join(other, "more"), "a link to a directory")
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a.jsonl"), randomLines(1, 5))
	link := filepath.Join(dir, "link.jsonl")
	if err := os.Link(a, link); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o777); err != nil {
		t.Fatal(err)
	}
	cut := packed(t, compress.Gzip, randomLines(1, 500))
	cut = cut[:len(cut)/2]
	short := write(t, filepath.Join(dir, "short.jsonl.gz"), cut)
	one := func(paths ...string) Options { return options(Dataset{Name: "a", Paths: paths}) }
	for _, c := range []struct {
		name string
		o    Options
		want []string
	}{
		{"no datasets", options(), []string{"no datasets"}},
		{"two of one name", options(Dataset{Name: "a", Paths: []string{a}}, Dataset{Name: "a", Paths: []string{a}}), []string{`"a"`, "names must differ"}},
		{"no path", one(), []string{"has no path"}},
		{"missing file", one(filepath.Join(dir, "no.jsonl")), []string{"no.jsonl", "no such file"}},
		{"empty glob", one(filepath.Join(dir, "*.zst")), []string{"nothing matches"}},
		{"bad glob", one(filepath.Join(dir, "[")), []string{"syntax error"}},
		{"directory without files", one(empty), []string{"hold no .jsonl"}},
		{"one file twice", one(a, a), []string{"is the same file"}},
		{"one file under two names", options(Dataset{Name: "a", Paths: []string{a}}, Dataset{Name: "b", Paths: []string{link}}), []string{"link.jsonl", `dataset "a"`, "is the same file"}},
		{"a device", one("/dev/null"), []string{"not a regular file"}},
		{"a cut file", one(short), []string{short, "behind offset", "unexpected EOF"}},
	} {
		err := run(storetest.MustInit(t), c.o)
		if err == nil {
			t.Errorf("%s: merged", c.name)
		}
		wants(t, err, c.want...)
	}
	ws := storetest.MustInit(t)
	mustMerge(t, ws, one(a))
	err := run(ws, options(Dataset{Name: "b", Paths: []string{a}}))
	wants(t, err, `"a"`, "run --redo merge")
}

// TestLongLines: one of 300,000 tokens is merged, one beyond MaxLine is
// rejected, and the lines around them are found.
func TestLongLines(t *testing.T) {
	var b bytes.Buffer
	small := func(n int) { fmt.Fprintf(&b, `{"input_ids":[1,%d],"loss_mask":[0,1]}`+"\n", n) }
	small(10)
	n := 300_000
	fmt.Fprintf(&b, `{"input_ids":[%s9],"loss_mask":[%s1]}`+"\n", strings.Repeat("123, ", n-1), strings.Repeat("0, ", n-1))
	small(11)
	at := b.Len()
	fmt.Fprintf(&b, `{"text":"%s"}`+"\n", strings.Repeat("x", MaxLine))
	small(12)
	b.WriteString(`{"pad":"` + strings.Repeat("y", 3<<20) + `"`)
	for name, text := range map[string][]byte{"plain": b.Bytes(), "zstd": packed(t, compress.Zstd, b.Bytes())} {
		ws := storetest.MustInit(t)
		path := write(t, filepath.Join(t.TempDir(), "a.jsonl"), text)
		d := mustMerge(t, ws, options(Dataset{Name: "a", Paths: []string{path}}))[0]
		if d.Lines != 6 || d.Accepted != 4 || d.MaxTokens != int64(n) || d.Reasons[reasonTooLong] != 1 || d.Reasons[reasonMalformed] != 1 {
			t.Errorf("%s: %+v", name, d)
		}
		kept, err := firstRejects(ws.RejectsPath("a"), 5)
		if err != nil || len(kept) != 2 || !strings.Contains(kept[0], fmt.Sprintf(":4: offset %d: too_long_line", at)) {
			t.Errorf("%s: kept %q, error %v", name, kept, err)
		}
		st, err := os.Stat(ws.RejectsPath("a"))
		if err != nil || st.Size() > 2*keptLine+4096 {
			t.Errorf("%s: rejects take %d bytes, error %v", name, st.Size(), err)
		}
	}
}

func TestCancelled(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.jsonl"), randomLines(1, 2000))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ws := storetest.MustInit(t)
	o := options(Dataset{Name: "a", Paths: []string{path}})
	if _, err := Run(ctx, ws, o, progress.Nop{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	mustMerge(t, ws, o)
}

func TestFullDisk(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.jsonl"), randomLines(1, 20))
	o := options(Dataset{Name: "a", Paths: []string{path}})
	o.Reserve = human.Share{Fraction: 1, Relative: true}
	var space *store.SpaceError
	if err := run(storetest.MustInit(t), o); !errors.As(err, &space) || space.Need <= 0 || space.Keep <= 0 {
		t.Errorf("error %v, want a SpaceError", err)
	}
}

func TestSeenSet(t *testing.T) {
	s := newSeenSet(0)
	h := func(i int) (h [16]byte) {
		copy(h[:], fmt.Sprintf("%016d", i*7919))
		return h
	}
	if !s.add([16]byte{}) || s.add([16]byte{}) {
		t.Error("the zero hash is not held like others")
	}
	for i := range 20_000 {
		if !s.add(h(i)) {
			t.Fatalf("%d was there before it was added", i)
		}
	}
	for i := range 20_000 {
		if s.add(h(i)) {
			t.Fatalf("%d was forgotten", i)
		}
	}
}
