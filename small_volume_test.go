package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"eaglebatch/fixtures"
	"eaglebatch/internal/fsx"

	"golang.org/x/sys/unix"
)

const oldFiles = 200_000

// TestVolumeTooSmall is the night of the campaign in small: an ext4 volume that
// is full of states of an earlier run, in 200,000 files that eaglebatch did not
// make. run seals a proof and asks, spends no further engine time until it is
// answered, and after the very command that it printed goes on by itself
// through gc to the sealed generation. What was promised to become free does.
func TestVolumeTooSmall(t *testing.T) {
	if os.Getenv("EAGLEBATCH_LONG") == "" {
		t.Skip("writes 200,000 files to a loop device: set EAGLEBATCH_LONG=1 to run it")
	}
	vol := filesVolume(t, 1900<<20)
	config, err := fixtures.Quickstart(vol)
	must(t, err)
	dir := filepath.Dir(config)
	writeOldStates(t, filepath.Join(dir, "old"))
	edit(t, config, "dtype: fp32", "proof: 40, dtype: fp32")
	edit(t, config, "extract:", "gc: {adopt: [{name: old-10k, path: old}]}\nextract:")
	eagle(t, "merge", "-q", "-c", config).want(t, 0)
	fill(t, vol, 25<<20)

	asked := eagle(t, "run", "-q", "-c", config).want(t, 4)
	asked.says(t, "a proof of 40 samples is sealed", "every chunk checked", "it fits once")
	t.Logf("\n%s", asked.err)
	before := eagle(t, "generations", "--json", "-c", config).want(t, 0).out
	eagle(t, "run", "-q", "-c", config).want(t, 4)
	if after := eagle(t, "generations", "--json", "-c", config).want(t, 0).out; after != before {
		t.Errorf("asking again made more than the proof:\n%s\n%s", before, after)
	}
	promised := promisedBytes(t, config)
	decide := commandWith(t, asked.err, "gc=old-10k")
	eagle(t, decide[1:]...).want(t, 0)

	free, held := freeBytes(t, vol), diskUsage(t, filepath.Join(dir, "work"))
	eagle(t, "run", "-q", "-c", config).want(t, 0).says(t, "old-10k deleted as decided")
	freed := freeBytes(t, vol) - free + diskUsage(t, filepath.Join(dir, "work")) - held
	off := float64(freed)/float64(promised) - 1
	t.Logf("promised %d bytes in %d files, the filesystem gained %d (%+.3f%%)", promised, oldFiles, freed, 100*off)
	if off < -.01 || off > .01 {
		t.Errorf("promised %d bytes, freed %d", promised, freed)
	}
	if _, err := os.Stat(filepath.Join(dir, "old")); !os.IsNotExist(err) {
		t.Errorf("the old states are still there: %v", err)
	}
	s := statOf(t, config)
	if g := s.Generations[len(s.Generations)-1]; g.State != "sealed" || g.Samples != 363 || s.Plan.Reused != 40 {
		t.Errorf("%+v, %d reused", g, s.Plan.Reused)
	}
	eagle(t, "check", "--full", "-q", "-c", config).want(t, 0)
}

// filesVolume mounts an ext4 that has room for many files.
func filesVolume(t *testing.T, size int64) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "ext4.img")
	must(t, os.WriteFile(img, nil, 0o666))
	must(t, os.Truncate(img, size))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-m", "0", "-N", fmt.Sprint(oldFiles*3/2), img).CombinedOutput(); err != nil {
		t.Skipf("needs mkfs.ext4: %v %s", err, out)
	}
	vol, _ := mount(t, "ext4", img, "loop")
	return vol
}

// writeOldStates makes a tree as an earlier run left it.
func writeOldStates(t *testing.T, dir string) {
	t.Helper()
	const inOne = 2000
	rng := rand.New(rand.NewPCG(7, 0))
	states := make([]byte, 8<<10)
	for i := range states {
		states[i] = byte(rng.Uint32())
	}
	for first := 0; first < oldFiles; first += inOne {
		rows := filepath.Join(dir, fmt.Sprintf("rows_%d-%d", first, first+inOne))
		must(t, os.MkdirAll(rows, 0o777))
		for i := range inOne {
			must(t, os.WriteFile(filepath.Join(rows, fmt.Sprintf("data_%d.ckpt", i)), states[:1000+rng.IntN(7000)], 0o666))
		}
	}
}

// fill leaves spare bytes above the reserve of 5%.
func fill(t *testing.T, vol string, spare int64) {
	t.Helper()
	freeBytes(t, vol) // settles what is delayed
	sp, err := fsx.SpaceAt(vol)
	must(t, err)
	f, err := os.Create(filepath.Join(vol, "others"))
	must(t, err)
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, sp.Free-sp.Total/20-spare))
	must(t, f.Close())
}

func freeBytes(t *testing.T, vol string) int64 {
	t.Helper()
	d, err := os.Open(vol)
	must(t, err)
	defer d.Close()
	must(t, unix.Syncfs(int(d.Fd())))
	sp, err := fsx.SpaceAt(vol)
	must(t, err)
	return sp.Free
}

func diskUsage(t *testing.T, dir string) (n int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err == nil {
			n += st.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	}))
	return n
}

// promisedBytes is what the plan says that deleting old-10k frees.
func promisedBytes(t *testing.T, config string) int64 {
	t.Helper()
	var doc struct {
		Room struct {
			From []struct {
				Name  string
				Bytes int64
			}
		}
	}
	must(t, json.Unmarshal([]byte(eagle(t, "plan", "--json", "-q", "-c", config).want(t, 0).out), &doc))
	for _, g := range doc.Room.From {
		if g.Name == "old-10k" {
			return g.Bytes
		}
	}
	t.Fatalf("the plan does not count on old-10k: %+v", doc.Room.From)
	return 0
}

// commandWith is the printed command that holds text, split into words.
func commandWith(t *testing.T, printed, text string) []string {
	t.Helper()
	for line := range strings.Lines(printed) {
		cmd, ok := strings.CutPrefix(strings.TrimSpace(line), "eaglebatch: hint: ")
		if words := strings.Fields(cmd); ok && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, text) }) && words[0] == "eaglebatch" {
			return words
		}
	}
	t.Fatalf("no command with %s is printed:\n%s", text, printed)
	return nil
}
