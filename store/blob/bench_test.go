package blob

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"eaglebatch/store/codec"
)

// benchCase is a blob's worth of states as an engine would hand them over.
type benchCase struct {
	meta    Meta
	samples int
	rows    int
	data    []byte // of one sample
	ids     []uint32
	mask    []byte
}

func newBenchCase(codec string) benchCase {
	m := testMeta(codec, "bf16")
	m.Hidden, m.Layers, m.ChunkBytes = 7168, []int{2, 30, 58, 61}, 0
	c := benchCase{meta: m, samples: 4, rows: 1000}
	r := rand.New(rand.NewPCG(1, 1))
	row := states(r, "bf16", 200*len(m.Layers), m.Hidden)
	// Rows repeat further apart than a chunk reaches.
	for len(c.data) < c.rows*len(m.Layers)*m.RowBytes() {
		c.data = append(c.data, row...)
	}
	c.data = c.data[:c.rows*len(m.Layers)*m.RowBytes()]
	c.ids, c.mask = make([]uint32, c.rows), make([]byte, c.rows)
	for t := range c.ids {
		c.ids[t], c.mask[t] = r.Uint32N(160_000), byte(t/100%2)
	}
	return c
}

func (c benchCase) bytes() int64 { return int64(c.samples) * int64(len(c.data)) }

func (c benchCase) write(tb testing.TB, path string, threads int) Info {
	tb.Helper()
	w, err := Create(path, c.meta, WriterOptions{Threads: threads})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range c.samples {
		if err := w.Begin(Entry{Rows: uint32(c.rows), Sample: uint64(i)}, c.ids, c.mask); err != nil {
			tb.Fatal(err)
		}
		if err := w.Rows(context.Background(), c.data, c.rows); err != nil {
			tb.Fatal(err)
		}
		if err := w.End(); err != nil {
			tb.Fatal(err)
		}
	}
	info, err := w.Commit(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	return info
}

// plainWrite is the yardstick: the same bytes copied once and written to a file
// that is fsynced, in pieces of 1 MiB.
func (c benchCase) plainWrite(tb testing.TB, path string, n int64) time.Duration {
	tb.Helper()
	start := time.Now()
	f, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for at := int64(0); at < n; at += int64(len(buf)) {
		copy(buf, c.data[at%(int64(len(c.data))-1<<20):])
		if _, err := f.Write(buf); err != nil {
			tb.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
	return time.Since(start)
}

// encodeOnly is the other yardstick: the codec alone, on all cores.
func (c benchCase) encodeOnly(tb testing.TB) time.Duration {
	tb.Helper()
	id, err := codec.Parse(c.meta.Codec)
	if err != nil {
		tb.Fatal(err)
	}
	n := runtime.GOMAXPROCS(0)
	done := make(chan error, n)
	start := time.Now()
	for g := range n {
		go func() {
			enc, err := codec.NewEncoder(id, c.meta.DType)
			var out []byte
			for at := g * DefaultChunkBytes; err == nil && at < c.samples*len(c.data); at += n * DefaultChunkBytes {
				k := at % (len(c.data) - DefaultChunkBytes)
				out, _, err = enc.Encode(out[:0], c.data[k:k+DefaultChunkBytes])
			}
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			tb.Fatal(err)
		}
	}
	return time.Since(start)
}

// BenchmarkWrite goes from states in memory to a sealed file, beside a plain
// file of as many bytes and the codec alone. The ratio to the slower of the two
// is what the container costs.
func BenchmarkWrite(b *testing.B) {
	for _, name := range []string{"raw", "lz4-planes", "dense"} {
		b.Run(name, func(b *testing.B) {
			c := newBenchCase(name)
			dir := b.TempDir()
			b.SetBytes(c.bytes())
			var ours, disk, enc time.Duration
			var info Info
			for b.Loop() {
				start := time.Now()
				info = c.write(b, filepath.Join(dir, "a.ebb"), 0)
				ours += time.Since(start)
				b.StopTimer()
				disk += c.plainWrite(b, filepath.Join(dir, "plain"), info.Bytes)
				enc += c.encodeOnly(b)
				b.StartTimer()
			}
			b.ReportMetric(float64(info.Bytes)/float64(info.RawBytes), "bytes/raw")
			b.ReportMetric(float64(disk)/float64(ours), "x-plain-file")
			b.ReportMetric(float64(enc)/float64(ours), "x-codec")
			b.ReportMetric(float64(max(disk, enc))/float64(ours), "x-slower")
		})
	}
}

// BenchmarkRead reads layers whole and verifies them, beside reading the same
// file plainly.
func BenchmarkRead(b *testing.B) {
	for _, name := range []string{"raw", "lz4-planes", "dense"} {
		b.Run(name, func(b *testing.B) {
			c := newBenchCase(name)
			path := filepath.Join(b.TempDir(), "a.ebb")
			c.write(b, path, 0)
			r := mustOpen(b, path)
			dst := make([]byte, c.rows*c.meta.RowBytes())
			b.SetBytes(c.bytes())
			var ours, plain time.Duration
			for b.Loop() {
				start := time.Now()
				for i := range c.samples {
					for l := range c.meta.Layers {
						if err := r.Layer(dst, i, l, 0, c.rows); err != nil {
							b.Fatal(err)
						}
					}
				}
				ours += time.Since(start)
				b.StopTimer()
				start = time.Now()
				f, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, struct{ io.Reader }{f}); err != nil {
					b.Fatal(err)
				}
				plain += time.Since(start)
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(plain)/float64(ours), "x-plain-file")
		})
	}
}

// BenchmarkChunkBytes is what DefaultChunkBytes was chosen by.
func BenchmarkChunkBytes(b *testing.B) {
	for _, kib := range []int{128, 256, 512, 1024, 2048} {
		b.Run(fmt.Sprintf("%dKiB", kib), func(b *testing.B) {
			c := newBenchCase("lz4-planes")
			c.meta.ChunkBytes = kib << 10
			path := filepath.Join(b.TempDir(), "a.ebb")
			b.SetBytes(c.bytes())
			var info Info
			var read time.Duration
			dst := make([]byte, c.rows*c.meta.RowBytes())
			for b.Loop() {
				info = c.write(b, path, 0)
				b.StopTimer()
				r, err := Open(path)
				if err != nil {
					b.Fatal(err)
				}
				start := time.Now()
				for l := range c.meta.Layers {
					if err := r.Layer(dst, 0, l, 0, c.rows); err != nil {
						b.Fatal(err)
					}
				}
				read += time.Since(start)
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(info.Bytes)/float64(info.RawBytes), "bytes/raw")
			b.ReportMetric(float64(len(c.data))*float64(b.N)/read.Seconds()/1e6, "read-MB/s")
		})
	}
}
