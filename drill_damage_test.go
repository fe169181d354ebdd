package main

import (
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"eaglebatch/store/storetest"
)

// wound is a kind of damage to one file; n chooses the place.
type wound struct {
	name    string
	resize  bool // the size gives it away
	inflict func(t *testing.T, path string, size, n int64)
}

func wounds() []wound {
	flip := func(t *testing.T, path string, size, n int64) { storetest.FlipBit(t, path, n%size) }
	all := []wound{
		{"tail cut off", true, func(t *testing.T, path string, size, n int64) { storetest.Truncate(t, path, size-1-n%min(size, 64)) }},
		{"half cut off", true, func(t *testing.T, path string, size, _ int64) { storetest.Truncate(t, path, size/2) }},
		{"a flipped bit", false, flip},
		{"a zeroed page", false, func(t *testing.T, path string, size, n int64) { storetest.ZeroPage(t, path, n%size&^4095) }},
		{"missing", true, func(t *testing.T, path string, _, _ int64) { must(t, os.Remove(path)) }},
		{"emptied", true, func(t *testing.T, path string, _, _ int64) { storetest.Truncate(t, path, 0) }},
	}
	if *long {
		for i := range int64(40) {
			all = append(all, wound{fmt.Sprint("a flipped bit, ", i), false, func(t *testing.T, path string, size, n int64) {
				flip(t, path, size, n/(i+2))
			}})
		}
	}
	return all
}

// injury is one case: a wound of one file, or a file too many.
type injury struct {
	wound wound
	path  string // relative to the workspace
	n     int64
}

func (i injury) String() string { return i.path + ": " + i.wound.name }

// strange are the names of files that nobody expects; a directory gets one of
// them, or one that looks like the program's own.
func (w *ward) strange(dir string) []string {
	names := []string{"notes.txt", "core"}
	for _, pattern := range []string{"*.ebb", "*.ebi", "*.ebo", "*.sst"} {
		own, err := filepath.Glob(filepath.Join(dir, pattern))
		if err == nil && len(own) > 0 {
			names = append(names, "000099"+filepath.Ext(own[0]), "blob-000099"+filepath.Ext(own[0]))
		}
	}
	return names
}

// injuries lists the cases of a ward: each wound of each file, and strange
// files in each directory.
func (w *ward) injuries(t *testing.T) (out []injury) {
	t.Helper()
	must(t, filepath.WalkDir(w.begin.work(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(w.begin.work(), path)
		if err != nil {
			return err
		}
		sum := fnv.New64a()
		fmt.Fprint(sum, w.name, rel)
		n := int64(sum.Sum64() >> 2)
		if d.IsDir() {
			name := w.strange(path)
			pick := name[n%int64(len(name))]
			out = append(out, injury{wound{"a file too many", true, func(t *testing.T, path string, _, _ int64) {
				must(t, os.WriteFile(path, []byte("of no concern"), 0o666))
			}}, filepath.Join(rel, pick), n})
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		for _, x := range wounds() {
			// An empty file says nothing, the lease apart, which is locked.
			// Of the two cuts it gets one.
			if cut := strings.HasSuffix(x.name, "cut off"); cut && !*long && strings.HasPrefix(x.name, "half") != (n%3 == 0) {
				continue
			}
			if info.Size() > 0 || x.name == "missing" && d.Name() == "LEASE" {
				out = append(out, injury{x, rel, n})
			}
		}
		return nil
	}))
	step := 2 // every other; .ci/run tries all
	switch {
	case drills || *long:
		step = 1
	case testing.Short():
		step = 9
	}
	kept := out[:0]
	for i := 0; i < len(out); i += step {
		kept = append(kept, out[i])
	}
	return kept
}

// inflict does the damage.
func (i injury) inflict(t *testing.T, s site) {
	t.Helper()
	path := s.work(i.path)
	if filepath.Base(path) == "reserve.bin" { // linked to that of the other copies
		must(t, os.Remove(path))
		must(t, os.WriteFile(path, make([]byte, 1<<20), 0o666))
	}
	size := int64(0)
	if st, err := os.Stat(path); err == nil {
		size = st.Size()
	}
	i.wound.inflict(t, path, size, i.n)
}

// TestDrillDamage hurts every file of a workspace that is finished, and of some
// that were interrupted, in every way: each command after it either gives what
// it gave before, or refuses with 12 and names the file; what it says helps
// does help, and in the end there are the states of the undisturbed run.
func TestDrillDamage(t *testing.T) {
	for _, w := range wards() {
		t.Run(w.name, func(t *testing.T) {
			w.admit(t)
			w.all(t).report(t, "damage: "+w.name)
		})
	}
}

// all hurts and heals, as many at a time as there are cores.
func (w *ward) all(t *testing.T) (c tally) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan injury)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for x := range work {
				problems := w.one(t, x)
				mu.Lock()
				c.tried++
				if len(problems) == 0 {
					c.survived++
				} else {
					c.lost++
					t.Errorf("%v: %s", x, strings.Join(problems, "\n"))
				}
				mu.Unlock()
			}
		})
	}
	for _, x := range w.injuries(t) {
		work <- x
	}
	close(work)
	wg.Wait()
	return c
}

// one hurts a copy, looks at it with every command in one of two orders, and
// follows the hints until all is well.
func (w *ward) one(t *testing.T, x injury) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	dir := filepath.Join(w.dir, strings.NewReplacer("/", "-", " ", "-", ":", "").Replace(x.String()))
	s := copySite(t, w.begin, dir)
	defer func() {
		if len(problems) == 0 || !keepDir {
			must(t, os.RemoveAll(dir))
		}
	}()
	x.inflict(t, s)
	p := &patient{ward: w, site: s, injury: x, bad: bad}
	looks := slices.Clone(w.looks)
	if x.n%2 == 0 { // whoever changes something comes first
		p.follow(t)
		return problems
	}
	for _, args := range looks {
		p.look(t, args)
	}
	p.follow(t)
	return problems
}
