package samples

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// manyGenerations makes n sealed generations of 5 samples.
func manyGenerations(t *testing.T, n int) (dir func(uint32) string, rows map[uint32]int64) {
	t.Helper()
	base := t.TempDir()
	dir, rows = func(gen uint32) string { return filepath.Join(base, fmt.Sprint(gen)) }, map[uint32]int64{}
	for gen := uint32(1); gen <= uint32(n); gen++ {
		w := mustWriter(t, dir(gen), 0, small())
		mustAppend(t, w, makeSamples(gen, 0, 5))
		if err := w.Seal(t.Context()); err != nil {
			t.Fatal(err)
		}
		rows[gen] = 5
	}
	return dir, rows
}

// openIn counts the files below dir that this process has open.
func openIn(t *testing.T, dir string) (n int) {
	t.Helper()
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ents {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

// TestSet: many readers at once get every sample of more generations than may be
// open, of which no more stay open than may.
func TestSet(t *testing.T) {
	dir, rows := manyGenerations(t, 12)
	s, err := NewSet(dir, rows, small())
	if err != nil {
		t.Fatal(err)
	}
	s.most = 20
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(k)))
			for range 100 {
				gen, i := 1+r.Uint32N(12), r.IntN(5)
				got, err := s.Get(context.Background(), gen, gen, uint64(i))
				if err != nil {
					t.Error(err)
					return
				}
				if d := cmp.Diff(&makeSamples(gen, i, 1)[0].IDs, &got.IDs); d != "" {
					t.Errorf("generation %d sample %d: %s", gen, i, d)
				}
			}
		})
	}
	wg.Wait()
	if s.files > s.most || len(s.open) < 2 || len(s.open) == 12 {
		t.Errorf("%d generations are open with %d files", len(s.open), s.files)
	}
	if n := openIn(t, filepath.Dir(dir(1))); n > s.most || n == 0 {
		t.Errorf("%d files are open, %d may be", n, s.most)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(time.Minute); openIn(t, filepath.Dir(dir(1))) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("files are still open")
		}
	}
}

// TestSetLooks: what is missing is told before the first sample is read, and again
// where it goes missing later.
func TestSetLooks(t *testing.T) {
	dir, rows := manyGenerations(t, 2)
	s, err := NewSet(dir, rows, small())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.RemoveAll(filepath.Join(dir(2), dbName)); err != nil {
		t.Fatal(err)
	}
	var c *CorruptError
	if _, err := NewSet(dir, rows, small()); !errors.As(err, &c) {
		t.Errorf("a new set: %v", err)
	}
	if _, err := s.Get(t.Context(), 2, 2, 0); !errors.As(err, &c) {
		t.Errorf("one that was opened before: %v", err)
	}
	if _, err := s.Get(t.Context(), 1, 1, 9); !errors.As(err, &c) {
		t.Errorf("a sample that is not there: %v", err)
	}
}
