package gc

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store/storetest"
)

// BenchmarkDelete deletes an adopted tree by plan, checks and all, and says how
// much longer that takes than os.RemoveAll on an equal tree.
func BenchmarkDelete(b *testing.B) {
	const files = 20000
	fill := func(dir string) {
		for i := range files {
			write(b, filepath.Join(dir, fmt.Sprintf("rows_%d-%d", i/2000*2000, i/2000*2000+2000), fmt.Sprintf("data_%d.ckpt", i)), 100)
		}
	}
	var ours, plain time.Duration
	for b.Loop() {
		ws := storetest.MustInit(b)
		mine, other := filepath.Join(b.TempDir(), "a"), filepath.Join(b.TempDir(), "b")
		fill(mine)
		fill(other)
		mustAdopt(b, ws, mine, "old")
		o := Options{Names: []string{"old"}, Now: true}
		began := time.Now()
		s := mustPlan(b, ws, o)
		if _, err := Execute(b.Context(), ws, s, o, progress.Nop{}); err != nil {
			b.Fatal(err)
		}
		ours += time.Since(began)
		began = time.Now()
		if err := os.RemoveAll(other); err != nil {
			b.Fatal(err)
		}
		plain += time.Since(began)
	}
	b.ReportMetric(ours.Seconds()/plain.Seconds(), "x-RemoveAll")
	b.ReportMetric(float64(files*b.N)/ours.Seconds(), "files/s")
}
