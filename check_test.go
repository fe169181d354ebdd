package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"eaglebatch/store/states"
	"eaglebatch/store/storetest"
)

// checkReport is what the tests read of check --json.
type checkReport struct {
	Full            bool
	Files, Bytes    int64
	Problems, Known []states.Problem
}

func checked(t *testing.T, config string, code int, args ...string) (d checkReport) {
	t.Helper()
	r := eagle(t, append([]string{"check", "--json", "-q", "-c", config}, args...)...).want(t, code)
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return d
}

// manyBlobs is the quickstart with made-up states in some twenty blobs.
func manyBlobs(t *testing.T) (config, gen string) {
	t.Helper()
	config, work := quickstart(t)
	edit(t, config, "dtype: fp32", "dtype: bf16, blob_size: 1MiB")
	edit(t, config, "{backend: native}", "{backend: synthetic}")
	return config, filepath.Join(work, "generations", "000002")
}

// TestCheckNamesDamage: a flipped bit is no matter for the quick check, and the
// full one names blob, byte, sample, layer and rows; the parts of --sample
// are all of it, and find it once.
func TestCheckNamesDamage(t *testing.T) {
	config, gen := manyBlobs(t)
	eagle(t, "run", "-q", "-c", config).want(t, 0)
	blobs, err := filepath.Glob(filepath.Join(gen, "*.ebb"))
	if err != nil || len(blobs) < 7 {
		t.Fatalf("%d blobs, %v", len(blobs), err)
	}
	sound := checked(t, config, 0, "--full")
	if sound.Files != int64(len(blobs))+2 {
		t.Errorf("%d files checked of %d blobs and 2 indexes", sound.Files, len(blobs))
	}
	storetest.FlipBit(t, blobs[3], 100_000)
	if d := checked(t, config, 0); d.Full || d.Files != sound.Files {
		t.Errorf("quick: %+v", d)
	}
	r := eagle(t, "check", "--full", "-q", "-c", config).want(t, 12)
	r.says(t, "damage found: 1 problem", "check --repair")
	d := checked(t, config, 12, "--full")
	if len(d.Problems) != 1 {
		t.Fatalf("%+v", d)
	}
	p := d.Problems[0]
	if p.Path != blobs[3] || p.Blob != 3 || p.Offset <= 0 || p.Offset > 100_000 || p.Entry < 0 || !slices.Contains([]int{2, 4, 5, 8}, p.Layer) || p.Rows == 0 {
		t.Errorf("%+v", p)
	}
	for _, want := range []string{fmt.Sprintf("%s at byte %d: entry %d (%s), layer %d, rows %d to %d", p.Path, p.Offset, p.Entry, p.Sample, p.Layer, p.First, p.First+p.Rows-1)} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not in %s", want, r.out)
		}
	}
	files, found := int64(0), 0
	for k := 1; k <= 7; k++ {
		code := 0
		if k-1 == 3%7 {
			code = 12
		}
		part := checked(t, config, code, "--sample", fmt.Sprintf("%d/7", k))
		files, found = files+part.Files, found+len(part.Problems)
	}
	if want := int64(len(blobs) + 7*2); files != want || found != 1 {
		t.Errorf("seven parts: %d files, want %d; %d problems", files, want, found)
	}
	// A file that is short or gone is a matter for the quick check.
	storetest.Truncate(t, blobs[4], -1)
	if err := os.Remove(blobs[5]); err != nil {
		t.Fatal(err)
	}
	if d := checked(t, config, 12); len(d.Problems) != 2 || d.Problems[0].Path != blobs[4] || d.Problems[1].Path != blobs[5] {
		t.Errorf("%+v", d.Problems)
	}
	eagle(t, "check", "--sample", "8/7", "-q", "-c", config).want(t, 2)
	repaired(t, config, gen)
}

// repaired: the new generation holds every sample, points to what is sound, and
// gives the states that were there before the damage.
func repaired(t *testing.T, config, gen string) {
	t.Helper()
	eagle(t, "check", "--repair", "-q", "-c", config).want(t, 0)
	s := statOf(t, config)
	g := s.Generations[len(s.Generations)-1]
	if g.State != "sealed" || g.Samples != 363 || !slices.Equal(g.Needs, []uint32{2}) || s.Plan.NewSamples == 0 || s.Plan.NewSamples > 80 {
		t.Errorf("%+v, %d samples computed", g, s.Plan.NewSamples)
	}
	if d := checked(t, config, 0, "--full"); len(d.Known) == 0 || len(d.Problems) > 0 {
		t.Errorf("%+v", d)
	}
	whole, _ := manyBlobs(t)
	eagle(t, "run", "-q", "-c", whole).want(t, 0)
	a := openStates(t, filepath.Join(filepath.Dir(whole), "work", "generations", "000002"))
	b := openStates(t, filepath.Join(filepath.Dir(gen), "000003"))
	for i := range a.Index().Positions() {
		if !slices.Equal(bitsAt(t, a, i), bitsAt(t, b, i)) {
			t.Fatalf("position %d has other states", i)
		}
	}
}

// bitsAt is everything that a generation holds at a position.
func bitsAt(t *testing.T, g *states.Generation, i int64) []byte {
	t.Helper()
	s, err := g.At(i)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := s.Reader.Meta()
	out := slices.Clone(s.Mask)
	for l := range m.Layers {
		n, err := s.LayerRows(l)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, n*m.RowBytes())
		if err := s.Layer(buf, l, 0, n); err != nil {
			t.Fatal(err)
		}
		out = append(out, buf...)
	}
	return out
}

// TestCheckResumes: a slow full check that is killed, and one that is
// interrupted, go on where they stopped, and still report what was found
// before.
func TestCheckResumes(t *testing.T) {
	s := newSite(t, t.TempDir())
	s.configure(t, strings.Replace(drillConfig, "blob_size: 256KiB", "blob_size: 64KiB", 1))
	s.ok(t, "run")
	all, err := filepath.Glob(s.work("generations", "000002", "*.ebb"))
	must(t, err)
	if len(all) < 10 {
		t.Fatalf("%d blobs", len(all))
	}
	storetest.FlipBit(t, all[0], 4000)
	cursor := s.work("logs", "check.json")
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		cmd := s.command(t.Context(), nil, "check", "--full", "--rate", "16KiB")
		must(t, cmd.Start())
		for until := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(cursor); err == nil {
				break
			} else if !errors.Is(err, fs.ErrNotExist) || time.Now().After(until) {
				t.Fatalf("no cursor: %v", err)
			}
		}
		must(t, cmd.Process.Signal(sig))
		if err := cmd.Wait(); sig == syscall.SIGINT && cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("interrupted: %v", err)
		}
		// A quick look between leaves the cursor alone.
		s.ok(t, "check")
		r := s.run(t, nil, "check", "--resume", "--json", "-q")
		var d checkReport
		must(t, json.Unmarshal([]byte(r.out), &d))
		if r.code != 12 || len(d.Problems) != 1 || d.Problems[0].Blob != 0 {
			t.Errorf("%v: exit %d, %+v", sig, r.code, d.Problems)
		}
		if !d.Full || d.Files >= int64(len(all))+2 || d.Files < 2 {
			t.Errorf("%v: %d of %d files looked at again", sig, d.Files, len(all)+2)
		}
		if _, err := os.Stat(cursor); err == nil {
			t.Errorf("%v: the cursor of a finished check is still there", sig)
		}
	}
}

// TestRetryQuarantined: what failed is tried again, into a new generation that
// points to the rest; some may fail again.
func TestRetryQuarantined(t *testing.T) {
	config, _ := manyBlobs(t)
	edit(t, config, "{backend: synthetic}", `{backend: synthetic, max_quarantined: 5%, faults: "refuse=200"}`)
	eagle(t, "run", "-q", "-c", config).want(t, 1).says(t, "too many samples quarantined", "raise extract.max_quarantined and run again to seal without them: nothing is computed twice")
	edit(t, config, "max_quarantined: 5%", "max_quarantined: 15%")
	eagle(t, "run", "-q", "-c", config).want(t, 3).says(t, "extract --retry-quarantined")
	before := statOf(t, config)
	bad := before.Generations[len(before.Generations)-1].Quarantined
	if bad < 10 || bad > 60 {
		t.Fatalf("%d quarantined", bad)
	}
	edit(t, config, "refuse=200", "refuse=201") // a few others, of which some are among those
	eagle(t, "extract", "--retry-quarantined", "-q", "-c", config).want(t, 3)
	s := statOf(t, config)
	g := s.Generations[len(s.Generations)-1]
	if g.State != "sealed" || g.Quarantined == 0 || g.Quarantined >= bad || g.Samples != 363-g.Quarantined || !slices.Equal(g.Needs, []uint32{2}) {
		t.Errorf("%+v of %d quarantined before", g, bad)
	}
	edit(t, config, `, faults: "refuse=201"`, "")
	eagle(t, "extract", "--retry-quarantined", "-q", "-c", config).want(t, 0)
	if s = statOf(t, config); s.Generations[len(s.Generations)-1].Samples != 363 {
		t.Errorf("%+v", s.Generations)
	}
	eagle(t, "extract", "--retry-quarantined", "-q", "-c", config).want(t, 0)
	if d := checked(t, config, 0, "--full"); len(d.Problems) > 0 {
		t.Errorf("%+v", d)
	}
}
