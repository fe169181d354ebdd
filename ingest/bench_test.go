package ingest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store/storetest"
)

// anonymous returns the process's anonymous memory, in bytes.
func anonymous(tb testing.TB) int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var kb int64
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "RssAnon:"); ok {
			if _, err := fmt.Sscan(rest, &kb); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return kb << 10
}

// peak samples anonymous memory until stop is called, which returns the most.
func peak(tb testing.TB) (stop func() int64) {
	var most atomic.Int64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			most.Store(max(most.Load(), anonymous(tb)))
			select {
			case <-quit:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() int64 {
		close(quit)
		<-done
		return most.Load()
	}
}

// BenchmarkCampaign merges the datasets in the directory that
// EAGLEBATCH_CAMPAIGN names (NAME/tokenized_data.jsonl each) and reports peak
// anonymous memory beside the time.
func BenchmarkCampaign(b *testing.B) {
	root := os.Getenv("EAGLEBATCH_CAMPAIGN")
	if root == "" {
		b.Skip("EAGLEBATCH_CAMPAIGN names no directory")
	}
	files, err := filepath.Glob(filepath.Join(root, "*", "tokenized_data.jsonl"))
	if err != nil || len(files) == 0 {
		b.Fatalf("%s: %d datasets, error %v", root, len(files), err)
	}
	o := options()
	o.VocabSize, o.Memory, o.Threads = 163840, 512<<20, runtime.GOMAXPROCS(0)
	size := int64(0)
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			b.Fatal(err)
		}
		size += st.Size()
		o.Datasets = append(o.Datasets, Dataset{Name: filepath.Base(filepath.Dir(f)), Paths: []string{f}})
	}
	b.SetBytes(size)
	var most int64
	for b.Loop() {
		b.StopTimer()
		ws := storetest.MustInit(b)
		stop := peak(b)
		b.StartTimer()
		if _, err := Run(context.Background(), ws, o, progress.Nop{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		most = max(most, stop())
		b.StartTimer()
	}
	b.ReportMetric(float64(most)/(1<<20), "anon-MiB")
}
