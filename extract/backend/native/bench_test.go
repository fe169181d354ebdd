package native

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model/kernel"
)

// BenchmarkServe runs a job file: fixtures/bench/native_vs_others.py writes it
// and compares the figures with those of other engines in the same run.
func BenchmarkServe(b *testing.B) {
	path := os.Getenv("EAGLEBATCH_BENCH")
	if path == "" {
		b.Skip("EAGLEBATCH_BENCH names no job file")
	}
	var job struct {
		Model   string
		Options Options
		Samples [][]uint32
		States  string // where the states go, as fp32, one sample behind the other
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(raw, &job); err != nil {
		b.Fatal(err)
	}
	tokens := 0
	for b.Loop() {
		rows := serve(b, job.Model, job.Options, job.Samples...)
		tokens = 0
		var all []byte
		for i, s := range job.Samples {
			tokens += len(s)
			if job.States != "" {
				all = append(all, rows[i]...)
			}
		}
		if job.States != "" {
			if err := os.WriteFile(job.States, all, 0o666); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(tokens*b.N)/b.Elapsed().Seconds(), "tok/s")
}

// BenchmarkGemm measures the products of the shapes of a small and a middling
// model on one thread and two; the same script compares them with OpenBLAS.
func BenchmarkGemm(b *testing.B) {
	ops := []arith{{set: kernel.Best()}}
	for _, f := range kernel.BF16s() {
		ops = append(ops, arith{set: kernel.Best(), bf16: f})
	}
	for _, a := range ops {
		name := "fp32-" + a.set.Name()
		if a.bf16 != nil {
			name = "bf16-" + a.bf16.Name()
		}
		for _, d := range []struct{ n, k int }{{1536, 576}, {576, 1536}, {8192, 2048}} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dx%d/threads=%d", name, d.n, d.k, threads), func(b *testing.B) {
					benchGemm(b, a, d.n, d.k, threads)
				})
			}
		}
	}
}

func benchGemm(b *testing.B, a arith, n, k, threads int) {
	const m = 4 * rowBlock
	arena := a.newArena(n * k)
	w := arena.take(n, k)
	lda, ldc := stride(k), stride(n)
	x, c := make([]float32, m*lda), make([]float32, m*ldc)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	bufs := make([]operandBuf, threads)
	for i := range bufs {
		bufs[i] = a.newOperand(rowBlock * lda)
	}
	best := math.Inf(1)
	for b.Loop() {
		start := time.Now()
		parallel(threads, m/rowBlock, func(t, i int) {
			l := a.left(x[i*rowBlock*lda:], lda, rowBlock, k, bufs[t])
			a.mul(c[i*rowBlock*ldc:], ldc, l, w, false)
		})
		best = min(best, time.Since(start).Seconds())
	}
	b.ReportMetric(2*m*float64(n*k)/best/1e9, "GFLOP/s") // of the best run, as the script takes it of OpenBLAS
}

// serve runs the samples through a new backend and returns each one's rows.
func serve(t testing.TB, path string, o Options, samples ...[]uint32) [][]byte {
	t.Helper()
	b, err := New(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	in := make(chan backend.Request, len(samples))
	for i, s := range samples {
		in <- backend.Request{ID: uint64(i), Tokens: s}
	}
	close(in)
	out := make([][]byte, len(samples))
	err = b.Serve(t.Context(), 0, in, func(c backend.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		out[c.ID] = append(out[c.ID], c.Data...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}
