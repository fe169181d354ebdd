//go:build linux

package codec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"
)

// statesEnv names a directory of NumPy files, each [tokens, layers, hidden]
// bf16 bits as uint16, to measure on in place of made-up states.
const statesEnv = "EAGLEBATCH_STATES"

// benchChunks returns bf16 chunks of about size bytes, each [rows, hidden] of
// one layer.
func benchChunks(tb testing.TB, size int) [][]byte {
	dir := os.Getenv(statesEnv)
	if dir == "" {
		var out [][]byte
		for seed := range uint64(16) {
			out = append(out, states("bf16", size/2, seed))
		}
		return out
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.npy"))
	if err != nil {
		tb.Fatal(err)
	}
	var out [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, npyChunks(b, size)...)
	}
	if len(out) == 0 {
		tb.Fatalf("no states in %s", dir)
	}
	// A fair sample of 16 MiB is enough and leaves time for many runs.
	step := max(1, len(out)*size>>24)
	for i := 0; i*step < len(out); i++ {
		out[i] = out[i*step]
	}
	return out[:(len(out)+step-1)/step]
}

var npyHeader = regexp.MustCompile(`'<u2'.*'shape': \((\d+), (\d+), (\d+)\)`)

// npyChunks cuts a [tokens, layers, hidden] array into chunks; nil for others.
func npyChunks(b []byte, size int) [][]byte {
	head, data := b[:128], b[128:]
	m := npyHeader.FindSubmatch(head)
	if m == nil {
		return nil
	}
	var dim [3]int
	for i := range dim {
		dim[i], _ = strconv.Atoi(string(m[i+1]))
	}
	row := 2 * dim[2]
	var out [][]byte
	for l := range dim[1] {
		var chunk []byte
		for t := range dim[0] {
			at := (t*dim[1] + l) * row
			chunk = append(chunk, data[at:at+row]...)
			if len(chunk)+row > size {
				out = append(out, chunk)
				chunk = nil
			}
		}
		if len(chunk) > 0 {
			out = append(out, chunk)
		}
	}
	return out
}

// BenchmarkCodecs measures every codec on the same bf16 chunks in one run:
// ratio, raw GB of encode and decode a second of one core, and each as a share of
// memcpy and of plain lz4 in that run.
func BenchmarkCodecs(b *testing.B) {
	for _, size := range []int{128 << 10, 256 << 10, 1 << 20} {
		chunks := benchChunks(b, size)
		total := 0
		for _, c := range chunks {
			total += len(c)
		}
		dst := make([]byte, size)
		memcpy := gbps(total, func() {
			for _, c := range chunks {
				copy(dst, c)
			}
		})
		lz := newSpeed(b, LZ4, chunks, total)
		fmt.Printf("chunks of %d KiB, %d MiB raw, kernels %s: memcpy %.2f GB/s, lz4 ratio %.3f encode %.2f decode %.2f GB/s\n",
			size>>10, total>>20, fastKernels().name, memcpy, lz.ratio, lz.encode, lz.decode)
		for _, c := range []ID{Planes, Dense} {
			s := newSpeed(b, c, chunks, total)
			fmt.Printf("  %-10v ratio %.4f  encode %.2f GB/s (%.3f of memcpy, %.2f of lz4)  decode %.2f GB/s (%.3f of memcpy, %.2f of lz4)\n",
				c, s.ratio, s.encode, s.encode/memcpy, s.encode/lz.encode, s.decode, s.decode/memcpy, s.decode/lz.decode)
		}
	}
}

type speed struct{ ratio, encode, decode float64 }

func newSpeed(b *testing.B, c ID, chunks [][]byte, total int) speed {
	e, err := NewEncoder(c, "bf16")
	if err != nil {
		b.Fatal(err)
	}
	d, err := NewDecoder("bf16")
	if err != nil {
		b.Fatal(err)
	}
	encs := make([][]byte, len(chunks))
	used := make([]ID, len(chunks))
	size := 0
	for i, raw := range chunks {
		enc, u, err := e.Encode(nil, raw)
		if err != nil {
			b.Fatal(err)
		}
		encs[i], used[i] = enc, u
		size += len(enc)
		back := make([]byte, len(raw))
		if err := d.Decode(back, enc, u); err != nil || !bytes.Equal(back, raw) {
			b.Fatalf("chunk %d does not come back: %v", i, err)
		}
	}
	s := speed{ratio: float64(size) / float64(total)}
	buf := make([]byte, 0, 2*len(chunks[0]))
	s.encode = gbps(total, func() {
		for _, raw := range chunks {
			if c == LZ4 { // without the raw fallback, which spares a copy
				n, err := e.lz.CompressBlock(raw, buf[:lz4.CompressBlockBound(len(raw))])
				if err != nil || n == 0 {
					b.Fatal(n, err)
				}
				continue
			}
			if _, _, err := e.Encode(buf, raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	dst := make([]byte, len(chunks[0]))
	s.decode = gbps(total, func() {
		for i, enc := range encs {
			if err := d.Decode(dst[:len(chunks[i])], enc, used[i]); err != nil {
				b.Fatal(err)
			}
		}
	})
	return s
}

// gbps returns the best rate of several runs by the processor time of this
// thread, so that what else the machine does counts as little as it can.
func gbps(bytes int, f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	best := time.Duration(1 << 62)
	start := time.Now()
	for run := 0; run < 5 || time.Since(start) < 300*time.Millisecond; run++ {
		t := threadTime()
		f()
		best = min(best, threadTime()-t)
	}
	return float64(bytes) / float64(best.Nanoseconds())
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// BenchmarkKernels prints the raw GB/s of each form of each kernel.
func BenchmarkKernels(b *testing.B) {
	raw := benchChunks(b, 128<<10)[0]
	n := len(raw) / 2
	top, low, planes := make([]byte, n), make([]byte, n), make([]byte, n)
	for _, k := range kernelForms() {
		split := gbps(len(raw), func() { k.split(top, low, raw) })
		plane := gbps(len(raw), func() { k.plane(planes, top, 0xff, 120) })
		unplane := gbps(len(raw), func() { k.unplane(top, planes, 0xff, 120) })
		join := gbps(len(raw), func() { k.join(raw, top, low) })
		var t tree
		t.plan(histogram(top))
		t.start(n)
		down := gbps(len(raw), func() {
			for i := range t.inner {
				t.nodes[i].pos = uint64(i * 8 * streamRoom(n))
			}
			k.encodeTree(&t, top)
		})
		if err := t.parse(t.append(nil, len(top)), n, 0xff); err != nil {
			b.Fatal(err)
		}
		start, literal := t.nodes, t.literal
		up := gbps(len(raw), func() {
			t.nodes, t.literal = start, literal
			k.decodeTree(&t, top)
		})
		fmt.Printf("%-9s split %.2f plane %.2f unplane %.2f join %.2f tree encode %.2f decode %.2f GB/s of raw bf16\n",
			k.name, split, plane, unplane, join, down, up)
	}
}
