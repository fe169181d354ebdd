package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"eaglebatch/internal/fsx"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// failure is what the disk does: the nth call of a kind on a file ends as how
// says. strace counts each thread's calls for itself.
type failure struct {
	call, path string // path relative to the site; "" for msync, which names none
	nth        int
	how        string
}

const (
	broken = "error=EIO"
	noRoom = "error=ENOSPC"
	short  = "retval=0" // not a byte was written
	lied   = "retval=1" // one byte was written, says the disk, and has not written it
)

func (f failure) String() string {
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s at call %d", f.call, f.path, f.how, f.nth)), " ")
}

func (f failure) isSync() bool { return strings.Contains(f.call, "sync") }

// words are those by which an error may name the call.
func (f failure) words() []string {
	switch {
	case strings.HasPrefix(f.call, "rename"):
		return []string{"rename", "renaming"}
	case !f.isSync():
		return []string{"write", "writing"}
	case strings.Contains(f.path, "manifest.db"):
		return []string{"sync", "open"} // bbolt syncs a new file while opening it
	}
	return []string{"sync"}
}

// harmless: what the run may do without. status.json is for onlookers, the name
// in run.lock too, and the reserve is there where there is room for it; logs
// hold where check --resume goes on.
func (f failure) harmless() bool {
	switch strings.TrimSuffix(filepath.Base(f.path), fsx.TempSuffix) {
	case "status.json", "check.json", "logs":
		return true
	case "run.lock", "reserve.bin":
		return f.how == noRoom
	}
	return false
}

// failures spreads the faults over what an undisturbed run does: each kind of
// call on each file fails in every way at its first time, and in one way after
// 2, 4, 8 … times.
func failures(calls []call, lies bool) (out []failure) {
	type key struct{ name, path string }
	count := map[key]int{}
	var order []key
	for _, c := range calls {
		k := key{c.name, c.path}
		if c.name == "msync" {
			k.path = "" // a mapping has no name, and its address changes
		} else if k.path == "" {
			continue // not on the volume
		}
		if count[k]++; count[k] == 1 {
			order = append(order, k)
		}
	}
	for _, k := range order {
		hows := []string{broken, noRoom}
		switch writes := strings.Contains(k.name, "write"); {
		case lies && !writes:
			continue
		case lies:
			hows = []string{lied}
		case writes:
			hows = append(hows, short)
		}
		for i, n := 0, 1; n <= count[k]; i++ {
			for j, how := range hows {
				if *long || n == 1 || j == i%len(hows) {
					out = append(out, failure{k.name, k.path, n, how})
				}
			}
			if *long || k.name == "msync" {
				n++
			} else {
				n *= 2
			}
		}
	}
	return out
}

// TestDrillFailingDisk lets one call in turn fail by which a run gets onto the
// disk, and cuts the power when the run has ended: what a failed fsync was for
// is then really gone. The run ends with an error that names operation and
// file, fsyncs nothing a second time, has acknowledged nothing that is lost,
// and the next one makes the files of the undisturbed run. With that, what
// Badger swallows is noticed.
func TestDrillFailingDisk(t *testing.T) {
	needDrills(t, "strace", "mkfs.ext4", "mount")
	if os.Geteuid() != 0 {
		skip(t, "needs root to mount")
	}
	if out, err := exec.Command("strace", "-f", "--seccomp-bpf", "-o", "/dev/null", "true").CombinedOutput(); err != nil {
		skip(t, "needs strace to trace a child: %v %s", err, out)
	}
	var vols []*failingVolume
	for range min(runtime.GOMAXPROCS(0), 4) { // loop devices are few
		vols = append(vols, newFailingVolume(t))
	}
	d := &failingDisk{vols: vols, args: []string{"run"}}
	calls := d.undisturbed(t)
	d.all(t, failures(calls, false), d.one).report(t, "failing disk: EIO, ENOSPC, short writes")
	d.all(t, failures(calls, true), d.lie).report(t, "failing disk: writes that lie")
	for _, sc := range scenarios() {
		if !slices.Contains([]string{"gc: at once", "gc: unlink", "check --repair", "export"}, sc.name) {
			continue
		}
		begin := newSite(t, scratch(t))
		sc.prepare(t, begin)
		must(t, os.MkdirAll(begin.work("logs"), 0o777))
		d := &failingDisk{vols: vols, args: sc.args, begin: &begin}
		first := slices.DeleteFunc(failures(d.undisturbed(t), false), func(f failure) bool { return !*long && (f.nth > 1 || f.how != broken) })
		d.all(t, first, d.one).report(t, "failing disk: "+sc.name)
	}
}

// failingDisk is a command that the disk fails.
type failingDisk struct {
	vols  []*failingVolume
	args  []string
	begin *site             // what there is before it; nil: no workspace
	want  map[string]string // files after it, undisturbed
}

// undisturbed runs the command on a sound disk.
func (d *failingDisk) undisturbed(t *testing.T) []call {
	t.Helper()
	v := d.vols[0]
	v.reset(t, d.begin)
	if r := v.s.straced(t, v.log, nil, []string{"-e", "trace=" + diskCalls}, d.args...); r.code != 0 {
		t.Fatalf("undisturbed: %v", r)
	}
	d.want = v.s.files(t)
	return v.s.readCalls(t, v.log)
}

// failingVolume is an ext4 of its own with a site.
type failingVolume struct {
	s       site
	dir     string
	remount func()
	log     string // of strace
	acks    string // trace of a child's file operations
}

func newFailingVolume(t *testing.T) *failingVolume {
	dir, remount := mount(t, "ext4", image(t, "ext4", 100<<20), "loop")
	s := newSite(t, filepath.Join(dir, "site"))
	longSamples(t, s)
	unix.Sync() // the datasets are not what the drill is about
	out := t.TempDir()
	return &failingVolume{s: s, dir: dir, remount: remount, log: filepath.Join(out, "strace"), acks: filepath.Join(out, "acks")}
}

// longSamples adds one sample to each dataset that is too large for Badger's
// tree and goes to its value log.
func longSamples(t testing.TB, s site) {
	t.Helper()
	for i, name := range []string{"A", "B", "C"} {
		ids := strings.Repeat(fmt.Sprintf("%d,%d,", 7+i, 900-i), 500)
		mask := strings.Repeat("0,1,", 500)
		f, err := os.OpenFile(filepath.Join(s.dir, "data", name+".jsonl"), os.O_APPEND|os.O_WRONLY, 0)
		must(t, err)
		_, err = fmt.Fprintf(f, `{"id":"long-%s","input_ids":[%s],"loss_mask":[%s]}`+"\n", name, strings.TrimSuffix(ids, ","), strings.TrimSuffix(mask, ","))
		must(t, err)
		must(t, f.Close())
	}
}

// reset puts back what there was before a command.
func (v *failingVolume) reset(t testing.TB, begin *site) {
	t.Helper()
	must(t, errors.Join(os.RemoveAll(v.s.work()), os.RemoveAll(filepath.Join(v.s.dir, "out"))))
	if begin != nil {
		copySite(t, *begin, v.s.dir)
	}
	unix.Sync()
}

// all runs the failures, as many at a time as there are volumes. Those that
// were not reached (another thread did the call) do not count.
func (d *failingDisk) all(t *testing.T, todo []failure, one func(*testing.T, *failingVolume, failure) (bool, []string)) (c tally) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan failure)
	for _, v := range d.vols {
		wg.Go(func() {
			for f := range work {
				v.reset(t, d.begin)
				reached, problems := one(t, v, f)
				mu.Lock()
				if reached {
					c.tried++
				} else if f.nth == 1 && !strings.Contains(f.path, ".ebb.") { // a blob's name has the slot's
					problems = append(problems, "not reached")
				}
				if len(problems) > 0 {
					c.lost++
					t.Errorf("%v: %s", f, strings.Join(problems, "\n"))
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range todo {
		work <- f
	}
	close(work)
	wg.Wait()
	c.survived = c.tried - c.lost
	return c
}

// strike runs a child on which f falls.
func (v *failingVolume) strike(t testing.TB, f failure, args []string) (r ending, calls []call, at int) {
	t.Helper()
	must(t, os.RemoveAll(v.acks))
	opts := []string{"-e", "trace=" + f.call, "-e", fmt.Sprintf("inject=%s:%s:when=%d", f.call, f.how, f.nth)}
	if f.path != "" {
		opts = append(opts, "-P", filepath.Join(v.s.dir, f.path))
	}
	r = v.s.straced(t, v.log, []string{"EAGLEBATCH_FSTRACE=" + v.acks}, opts, args...)
	calls = v.s.readCalls(t, v.log)
	return r, calls, slices.IndexFunc(calls, func(c call) bool { return c.injected })
}

// one lets f happen and returns what is wrong afterwards.
func (d *failingDisk) one(t *testing.T, v *failingVolume, f failure) (reached bool, problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	r, calls, at := v.strike(t, f, d.args)
	seq := acknowledged(t, v.acks, v.s.work())
	must(t, powerOff(v.dir))
	v.remount()
	if at >= 0 {
		f.ended(r, bad)
		f.onlyOnce(calls, at, bad)
	}
	before := v.s.truth(t, bad)
	if before.seq < seq {
		bad("the ledger had step %d before the cut, and %d after it", seq, before.seq)
	}
	v.s.finishes(t, d.args, d.want, before, bad)
	return at >= 0, problems
}

// ended: the run failed, and said what and where.
func (f failure) ended(r ending, bad complain) {
	name := strings.TrimSuffix(filepath.Base(f.path), fsx.TempSuffix)
	if f.path == "" {
		name = filepath.Join("samples", "000001") // Badger's, all of them
	}
	named := slices.ContainsFunc(f.words(), func(w string) bool { return strings.Contains(r.err, w) })
	switch {
	case r.code == 0 && f.harmless():
	case r.code != 1 && (r.code != 28 || f.how != noRoom):
		bad("it did not end the run as it should: %v", r)
	case !strings.Contains(r.err, name) || !named && f.path != "":
		bad("the error does not name operation and file: %v", r)
	}
}

// onlyOnce: after a failed fsync the pages count as clean, so that trying again
// would succeed. Badger does try again, its mappings and its directory while it
// closes: there the power cut shows that nobody relied on it.
func (f failure) onlyOnce(calls []call, at int, bad complain) {
	if !f.isSync() || f.path == "" || filepath.Base(f.path) == "db" {
		return
	}
	for _, c := range calls[at+1:] {
		if c.path == f.path && strings.Contains(c.name, "sync") {
			bad("was synced again after the failure")
		}
	}
}

// finishes: the command, given again, makes the files of the undisturbed one.
func (s site) finishes(t testing.TB, args []string, want map[string]string, before truth, bad complain) {
	t.Helper()
	if r := s.run(t, nil, args...); r.code != 0 {
		bad("the resumed run: %v", r)
		return
	}
	after := s.truth(t, bad)
	before.kept(after, bad)
	after.finished(bad)
	if r := s.run(t, nil, "check", "--full"); r.code != 0 {
		bad("check --full: %v", r)
	}
	if d := cmp.Diff(want, s.files(t)); d != "" {
		bad("files differ from the undisturbed run (-want +got):\n%s", d)
	}
	if left := s.temporary(t); len(left) > 0 {
		bad("left behind: %v", left)
	}
}

// lie lets a write lie, after which a file has other bytes than it should: the
// run, the next one or check --full say so, or nothing came of it.
func (d *failingDisk) lie(t *testing.T, v *failingVolume, f failure) (reached bool, problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	r, _, at := v.strike(t, f, d.args)
	if r.code == 0 {
		r = v.s.run(t, nil, "check", "--full")
	}
	if r.code == 0 {
		v.s.finishes(t, d.args, d.want, truth{}, bad)
	} else if dir := filepath.Dir(f.path); r.code != 12 && r.code != 1 || !strings.Contains(r.out+r.err, strings.TrimSuffix(dir, "/db")) {
		bad("nobody says that it is damaged: %v", r)
	}
	return at >= 0, problems
}
