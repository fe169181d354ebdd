package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/store/states"
)

// ward is a workspace to be hurt, and what is known of it while it is sound.
type ward struct {
	name    string
	prepare func(*testing.T, site)

	dir    string
	begin  site
	looks  [][]string        // commands that only look, and check
	said   map[string]string // what each gives
	codes  map[string]int
	sums   map[string]content // of the files that must not change unnoticed
	end    map[string]string  // of the finished workspace
	states []string           // digests of its samples and their states, by position
}

const damageConfig = `work: ./work
datasets:
  - {name: A, path: data/A.jsonl}
  - {name: B, path: data/B.jsonl}
  - {name: C, path: data/C.jsonl}
model: MODEL
merge: {max_rejects: 50%}
shuffle: {seed: 42}
plan: {layers: [2, 4, 8], blob_size: 256KiB, reserve: 1MiB}
gc: {keep: 1, min_age: 0s}
extract: {backend: native, min_top1: 0, memory: 256MiB, threads: 1}
`

// wards: a finished workspace, whose newest generation points into an older
// one, and three that were killed.
func wards() []*ward {
	killed := func(at string) func(*testing.T, site) {
		return func(t *testing.T, s site) {
			if r := s.run(t, []string{"EAGLEBATCH_FAULT=" + at}, "run"); r.code != -1 {
				t.Fatalf("%s: %v", at, r)
			}
		}
	}
	return []*ward{
		{name: "finished", prepare: func(t *testing.T, s site) {
			s.ok(t, "run")
			s.edit(t, "seed: 42", "seed: 43")
			s.ok(t, "run", "--redo", "shuffle")
		}},
		{name: "killed while extracting", prepare: killed("blob.after-rename:3")},
		{name: "killed while merging", prepare: killed("merge.after-dataset:2")},
	}
}

// edit changes the site's configuration.
func (s site) edit(t testing.TB, from, to string) {
	edit(t, filepath.Join(s.dir, "eaglebatch.yaml"), from, to)
}

// admit makes the workspace and finds out what is true of it.
func (w *ward) admit(t *testing.T) {
	model, err := filepath.Abs("fixtures/models/tiny-llama")
	must(t, err)
	w.dir = scratch(t)
	w.begin = newSite(t, filepath.Join(w.dir, "begin"))
	w.begin.configure(t, strings.Replace(damageConfig, "MODEL", model, 1))
	ids := strings.Repeat("5, 17, 900, 33, ", 400)
	f, err := os.OpenFile(filepath.Join(w.begin.dir, "data", "B.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	// A record that Badger keeps in its value log, and a line to reject.
	_, err = fmt.Fprintf(f, "{\"input_ids\": [%s1], \"loss_mask\": [%s1]}\nno sample\n", ids, strings.Repeat("1, ", 1600))
	must(t, errors.Join(err, f.Close()))
	w.prepare(t, w.begin)
	w.sums = w.begin.sums(t)
	for _, ref := range []string{"3:30", "2:59"} {
		w.looks = append(w.looks, []string{"cat", ref, "--json"})
	}
	w.looks = append(w.looks, []string{"stat", "--json"}, []string{"export", "--to", "jsonl", "--out", "all.jsonl"}, []string{"check"}, []string{"check", "--full"})
	sound := copySite(t, w.begin, filepath.Join(w.dir, "sound"))
	w.said, w.codes = map[string]string{}, map[string]int{}
	for _, args := range w.looks {
		r := sound.run(t, nil, args...)
		w.codes[key(args)] = r.code
		w.said[key(args)] = sound.answer(t, args, r)
	}
	if r := sound.run(t, nil, "run"); r.code != 0 {
		t.Fatalf("undisturbed: %v", r)
	}
	w.end, w.states = sound.files(t), sound.values(t)
}

func key(args []string) string { return strings.Join(args, " ") }

type content struct {
	size int
	sum  [sha256.Size]byte
}

// sums reads every file that is not advisory; of the orders and plans only
// those in force count.
func (s site) sums(t testing.TB) map[string]content {
	t.Helper()
	out := map[string]content{}
	add := func(path string) {
		b, err := os.ReadFile(path)
		must(t, err)
		out[strings.TrimPrefix(path, s.work()+"/")] = content{len(b), sha256.Sum256(b)}
	}
	must(t, filepath.WalkDir(s.work(), func(path string, d fs.DirEntry, err error) error {
		if info, ierr := d.Info(); ierr != nil || info.Size() == 0 && d.Name() != "LEASE" {
			return errors.Join(err, ierr) // an empty list of rejects
		}
		if err == nil && d.Type().IsRegular() && !advisory.MatchString(strings.TrimPrefix(path, s.work()+"/")) {
			add(path)
		}
		return err
	}))
	order, ok, err := s.snapshot(t).Order()
	if must(t, err); ok {
		add(s.work("orders", fmt.Sprintf("%06d.ebo", order.ID)))
	}
	plan, ok, err := s.snapshot(t).Plan()
	if must(t, err); ok {
		add(s.work("plans", fmt.Sprintf("%06d.ebi", plan.ID)))
	}
	return out
}

// answer is what a command gave, apart from what changes with time.
func (s site) answer(t testing.TB, args []string, r ending) string {
	t.Helper()
	switch {
	case r.code != 0:
		return ""
	case args[0] == "cat":
		return r.out
	case args[0] == "export":
		b, err := os.ReadFile(filepath.Join(s.dir, "all.jsonl"))
		must(t, err)
		return fmt.Sprintf("%x", sha256.Sum256(b))
	case args[0] == "stat":
		var st statFields
		must(t, json.Unmarshal([]byte(r.out), &st))
		return fmt.Sprintf("%+v %+v %+v %+v", st.Phases, st.Datasets, st.Generations, st.Damage)
	}
	return ""
}

// values are digests of ids, mask and states, by position of the plan in force.
func (s site) values(t testing.TB) (out []string) {
	t.Helper()
	p, _, err := s.snapshot(t).Plan()
	must(t, err)
	g, err := states.Open(s.work("generations", fmt.Sprintf("%06d", p.Generation)), false)
	must(t, err)
	for i := range g.Index().Positions() {
		x, err := g.At(i)
		must(t, err)
		sum := sha256.New()
		fmt.Fprintln(sum, x.Position.Dataset, x.Position.Sample, x.IDs, x.Mask)
		m := x.Reader.Meta()
		for l := range m.Layers {
			rows := make([]byte, int(x.Position.Rows)*m.RowBytes())
			must(t, x.Layer(rows, l, 0, int(x.Position.Rows)))
			sum.Write(rows)
		}
		x.Close()
		out = append(out, fmt.Sprintf("%x", sum.Sum(nil)))
	}
	must(t, g.Close())
	return out
}

// patient is a damaged copy.
type patient struct {
	ward *ward
	site
	injury
	bad complain
	// anew: something was made again on a hint, so that numbers differ.
	anew bool
}

// look runs a command that looks and judges what it says.
func (p *patient) look(t *testing.T, args []string) {
	r := p.run(t, nil, args...)
	k := key(args)
	switch {
	case crashed(r):
		p.bad("%s: crashed: %v", k, r)
	case r.code == 12:
		p.named(k, r)
	case args[0] == "stat" && r.code == 0 && strings.Contains(r.out, "the last step in "+p.path+" is incomplete"):
		// It says that it tells of an earlier moment.
	case r.code != p.ward.codes[k]:
		p.bad("%s: neither what it was nor a refusal: %v", k, r)
	case args[0] == "check" && r.code == 0:
		p.overlooked(t, k, len(args) > 1)
	case p.answer(t, args, r) != p.ward.said[k]:
		p.bad("%s: another answer: %v", k, r)
	}
}

func crashed(r ending) bool {
	return r.signal != 0 || strings.Contains(r.err, "goroutine ") || strings.Contains(r.err, "panic")
}

// named: a refusal names the file and the way out.
func (p *patient) named(k string, r ending) {
	name := filepath.Base(p.path)
	if strings.Contains(p.path, "samples/") {
		name = "samples/000001" // what is inside a Badger directory is its own
	}
	if !strings.Contains(r.out+r.err, name) {
		p.bad("%s: does not name %s: %v", k, name, r)
	}
	if !strings.Contains(r.err, "eaglebatch: hint: ") {
		p.bad("%s: no way out: %v", k, r)
	}
}

// advisory files may be damaged: nothing is believed that is read from them, or
// what they say is compared with another file.
var advisory = regexp.MustCompile(`^(status\.json|run\.lock|reserve\.bin|manifest\.db|checkpoints\.jsonl|logs/.*)$|\.tmp$|/db/|^(orders|plans)/`)

// overlooked: a check that finds nothing leaves a sound workspace, a quick one
// a workspace of the right files of the right sizes.
func (p *patient) overlooked(t *testing.T, k string, full bool) {
	for path, want := range p.ward.sums {
		b, err := os.ReadFile(p.work(path))
		same := err == nil && len(b) == want.size && (!full || sha256.Sum256(b) == want.sum)
		if !same {
			p.bad("%s: finds nothing, but %s is not what it was: %v", k, path, err)
		}
	}
}

var quoted = regexp.MustCompile(`'eaglebatch ([^']*)'`)

// follow does what the hints say until a run and a full check are content, and
// compares what there is then with the undisturbed run.
func (p *patient) follow(t *testing.T) {
	tried := map[string]bool{}
	for range 6 {
		r := p.run(t, nil, "run")
		if r.code == 0 {
			r = p.run(t, nil, "check", "--full")
		}
		if r.code == 0 {
			break
		}
		if crashed(r) || r.code != 12 {
			p.bad("run, or check --full after it: %v", r)
			return
		}
		p.named("run, or check --full after it", r)
		if !p.heal(t, r, tried) {
			p.bad("the way out leads nowhere, after %v: %v", tried, r)
			return
		}
	}
	if d := cmp.Diff(p.ward.states, p.values(t)); d != "" {
		p.bad("other states in the end (-want +got):\n%s", d)
	}
	if d := cmp.Diff(p.ward.end, p.files(t)); d != "" && !p.anew && p.wound.name != "a file too many" {
		p.bad("files differ from the undisturbed run (-want +got):\n%s", d)
	}
}

// heal does what a hint says: the last command it names, once, or with the
// file what a person is asked to do.
func (p *patient) heal(t *testing.T, r ending, tried map[string]bool) bool {
	// Lines of hints for several problems: one after the other.
	_, hint, _ := strings.Cut(r.err, "eaglebatch: hint: ")
	cmds := quoted.FindAllStringSubmatch(hint, -1)
	for _, c := range slices.Backward(cmds) {
		if tried[c[1]] {
			continue
		}
		tried[c[1]] = true
		p.anew = p.anew || !strings.Contains(c[1], "rebuild") && !strings.Contains(c[1], "--full")
		p.run(t, nil, strings.Fields(c[1])...)
		return true
	}
	if tried["by hand"] {
		return false
	}
	tried["by hand"] = true
	to, from := p.work(p.path), p.ward.begin.work(p.path)
	switch {
	case p.wound.name == "a file too many" && strings.Contains(hint, "move "+to+" away"):
		must(t, os.Remove(to))
	case strings.Contains(hint, "from a copy"), strings.Contains(hint, "back"):
		b, err := os.ReadFile(from)
		must(t, err)
		if now, err := os.ReadFile(to); err == nil && bytes.Equal(now, b) {
			return false
		}
		must(t, os.WriteFile(to, b, 0o666))
	default:
		return false
	}
	return true
}
