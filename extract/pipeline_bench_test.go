package extract

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/synthetic"
	"eaglebatch/store/blob"
	"eaglebatch/store/codec"
)

// BenchmarkPipeline goes from the synthetic engine to a sealed generation, of
// which every file is fsynced, and beside it, in the same run: a client of the
// same engine that keeps nothing; the codec alone, on all cores, on the same
// states; a plain file of as many bytes, written and fsynced. %-of-slower is the
// share of the speed of the slower of codec and disk that the whole reaches, the
// engine's own work and all checks included.
func BenchmarkPipeline(b *testing.B) {
	for _, name := range []string{"lz4-planes", "dense", "raw"} {
		for _, slots := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/%d slots", name, slots), func(b *testing.B) { benchPipeline(b, name, slots, 0) })
		}
	}
	b.Run("lz4-planes/20000 tokens a second", func(b *testing.B) { benchPipeline(b, "lz4-planes", 1, 20000) })
}

func benchPipeline(b *testing.B, name string, slots int, rate float64) {
	sh := shape{hidden: 4096, layers: 32, capture: []int{2, 16, 29, 32}, dtype: "bf16"}
	var stored, bare, enc, disk time.Duration
	var bytes, raw int64
	for b.Loop() {
		w := newWorld(b, planned{shape: sh, lengths: lengths(120, 1000), perBlob: 60, meta: func(m *blob.Meta) { m.Codec = name }})
		eng := func() backend.Backend {
			e, err := synthetic.New(synthetic.Options{Hidden: sh.hidden, Layers: sh.layers, Capture: sh.capture, DType: sh.dtype, Seed: 5, Rate: rate, Slots: slots})
			w.must(err)
			return e
		}
		o := w.options(eng())
		o.Memory = 1 << 30
		began := time.Now()
		g := w.seal(o).Generation
		stored += time.Since(began)
		began = time.Now()
		w.must(discard(b.Context(), eng(), w, func(backend.Chunk) error { return nil }))
		bare += time.Since(began)
		enc += w.encodeAlone(name, eng(), g.RawBytes)
		disk += w.plainFile(filepath.Join(b.TempDir(), "plain"), g.Bytes)
		bytes, raw = bytes+g.Bytes, raw+g.RawBytes
	}
	mb := func(n int64, d time.Duration) float64 { return float64(n) / d.Seconds() / 1e6 }
	b.ReportMetric(mb(raw, stored), "MB/s")
	b.ReportMetric(mb(raw, enc), "codec-MB/s")
	b.ReportMetric(mb(raw, disk), "disk-MB/s") // of raw bytes, like the others
	b.ReportMetric(mb(raw, bare), "engine-MB/s")
	b.ReportMetric(float64(bytes)/float64(raw), "bytes/raw")
	b.ReportMetric(100*bare.Seconds()/stored.Seconds(), "%-of-bare")
	b.ReportMetric(100*max(enc, disk).Seconds()/stored.Seconds(), "%-of-slower")
	b.ReportMetric(0, "ns/op") // laying out the workspace and the yardsticks count in it
}

// discard is the bare client: each answer is only looked at by see.
func discard(ctx context.Context, e backend.Backend, w *world, see func(backend.Chunk) error) error {
	in := make(chan backend.Request, len(w.samples))
	for i, s := range w.samples {
		in <- backend.Request{ID: uint64(i), Tokens: s.IDs}
	}
	close(in)
	return e.Serve(ctx, 0, in, see)
}

// encodeAlone measures the codec on all cores, on n bytes of e's states, cut as
// a blob cuts them.
func (w *world) encodeAlone(name string, e backend.Backend, n int64) time.Duration {
	w.t.Helper()
	const distinct = 64
	row := 2 * w.shape.hidden
	chunks := make([][]byte, 0, distinct)
	open := make([][]byte, len(w.shape.capture))
	enough := fmt.Errorf("%d chunks", distinct)
	err := discard(w.t.Context(), e, w, func(c backend.Chunk) error {
		for at := 0; at < len(c.Data); at += row {
			l := at / row % len(open)
			open[l] = append(open[l], c.Data[at:at+row]...)
			if len(open[l])+row > blob.DefaultChunkBytes {
				chunks, open[l] = append(chunks, open[l]), nil
			}
			if len(chunks) == distinct {
				return enough
			}
		}
		return nil
	})
	if len(chunks) < distinct {
		w.t.Fatal("too few states", err)
	}
	id, err := codec.Parse(name)
	w.must(err)
	threads := runtime.GOMAXPROCS(0)
	count := int(n) / len(chunks[0])
	done := make(chan error, threads)
	began := time.Now()
	for g := range threads {
		go func() {
			e, err := codec.NewEncoder(id, w.shape.dtype)
			var out []byte
			for i := g; err == nil && i < count; i += threads {
				out, _, err = e.Encode(out[:0], chunks[i%distinct])
			}
			done <- err
		}()
	}
	for range threads {
		w.must(<-done)
	}
	return time.Since(began)
}

// plainFile measures writing n bytes to a file, in pieces of 1 MiB, and fsync.
func (w *world) plainFile(path string, n int64) time.Duration {
	w.t.Helper()
	piece := make([]byte, 1<<20)
	for i := range piece {
		piece[i] = byte(mix(uint64(i)))
	}
	began := time.Now()
	f, err := os.Create(path)
	w.must(err)
	for ; n > 0; n -= int64(len(piece)) {
		_, err := f.Write(piece[:min(n, int64(len(piece)))])
		w.must(err)
	}
	w.must(f.Sync())
	w.must(f.Close())
	took := time.Since(began)
	w.must(os.Remove(path))
	return took
}
