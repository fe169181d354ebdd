package extract

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"eaglebatch/extract/backend/enginetest"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/store/blob"
)

// heapPeak samples the live and not yet returned heap until stop is called.
func heapPeak() (stop func() uint64) {
	var peak uint64
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		for {
			metrics.Read(s)
			peak = max(peak, s[0].Value.Uint64())
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() uint64 {
		close(done)
		wg.Wait()
		return peak
	}
}

// TestMemory: an extraction of many times the memory stays within it, with
// answers out of order, several slots and a sample larger than the memory.
func TestMemory(t *testing.T) {
	n := lengths(60, 600)
	n[20], n[41] = 20_000, 9000
	w := newWorld(t, planned{shape: shape{hidden: 512, layers: 8, capture: []int{2, 4, 6, 8}, dtype: "bf16"}, lengths: n, perBlob: 8})
	o := w.options(w.backend(2, "out-of-order"))
	o.Memory = 64 << 20
	// What other tests left is no concern of this one, and the collector is to
	// keep close behind: how far it falls back is the machine's affair.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	stop := heapPeak()
	w.seal(o)
	// The engine's own buffers, and what the collector has not found yet, come
	// on top.
	if peak := stop(); peak > 128<<20 {
		t.Errorf("%d MiB of heap for a memory of 64 MiB and %d MiB of states", peak>>20, 4*sum(n)>>10)
	}
}

func sum(n []int) (s int) {
	for _, x := range n {
		s += x
	}
	return s
}

// BenchmarkServer compares extraction from a vLLM server with a client of the
// same server that removes the files unread, in turns. The server is a fake that
// computes so many tokens a second whatever it is asked, of states as large as a
// model of 1T parameters has; what it takes to make and write them both pay.
func BenchmarkServer(b *testing.B) {
	sh := shape{hidden: 7168, layers: 61, capture: []int{2, 30, 58, 61}, dtype: "bf16"}
	block := make([]byte, 64*4*2*sh.hidden)
	for i := 0; i < len(block); i += 2 {
		binary.LittleEndian.PutUint16(block[i:], uint16(math.Float32bits(float32(gauss(i)))>>16))
	}
	fill := func(_ []uint32, states []byte) {
		for len(states) > 0 {
			states = states[copy(states, block):]
		}
	}
	for _, rate := range []float64{500, 2000} {
		b.Run(fmt.Sprintf("%.0f tokens a second", rate), func(b *testing.B) {
			var stored, bare time.Duration
			tokens := 0
			for b.Loop() {
				w := newWorld(b, planned{shape: sh, lengths: lengths(int(rate/20), 600), perBlob: 10, meta: func(m *blob.Meta) {
					m.Synthetic, m.Engine, m.Codec = false, "vllm", "lz4-planes"
				}})
				v, url := vllmServer(b, b.TempDir(), func(v *enginetest.VLLM) { v.Hidden, v.Rate, v.Fill = sh.hidden, rate, fill })
				client := vllmClient(b, v.Dir, []string{url}, func(o *vllm.Options) { o.Concurrency, o.Hidden = 16, sh.hidden })
				var ids [][]uint32
				for _, s := range w.samples {
					ids, tokens = append(ids, s.IDs), tokens+len(s.IDs)
				}
				began := time.Now()
				w.must(enginetest.Bare(b.Context(), url, "target", 16, ids))
				bare += time.Since(began)
				began = time.Now()
				o := w.options(client)
				o.Memory = 1 << 30
				w.seal(o)
				stored += time.Since(began)
				w.must(client.Close())
			}
			b.ReportMetric(float64(tokens)/stored.Seconds(), "tokens/s")
			b.ReportMetric(float64(tokens)*float64(4*2*sh.hidden)/stored.Seconds()/1e6, "MB/s")
			b.ReportMetric(100*bare.Seconds()/stored.Seconds(), "%-of-bare")
		})
	}
}

// gauss is the ith of numbers that are about normal.
func gauss(i int) float64 {
	x := mix(uint64(i))
	return float64(int64(x&0xffff)+int64(x>>16&0xffff)+int64(x>>32&0xffff)+int64(x>>48)-2*0xffff) / 0x8000
}

// TestHugeSample: 100,000 tokens at the shape of a 1T model, 5.7 GB of states,
// within 1 GiB. It writes as much to disk, hence only on request.
func TestHugeSample(t *testing.T) {
	if os.Getenv("EAGLEBATCH_LONG") == "" {
		t.Skip("writes 4 GB: set EAGLEBATCH_LONG=1 to run it")
	}
	sh := shape{hidden: 7168, layers: 61, capture: []int{2, 30, 58, 61}, dtype: "bf16"}
	w := newWorld(t, planned{shape: sh, lengths: []int{500, 100_000, 700}, perBlob: 1, meta: func(m *blob.Meta) { m.Codec = "lz4-planes" }})
	o := w.options(w.backend(1, ""))
	o.Memory = 1 << 30
	stop := heapPeak()
	g := w.seal(o).Generation
	peak := stop()
	t.Logf("%d MiB of heap at most, %.2f of the raw bytes on disk", peak>>20, float64(g.Bytes)/float64(g.RawBytes))
	if peak > 1<<30 {
		t.Errorf("%d MiB of heap", peak>>20)
	}
}
