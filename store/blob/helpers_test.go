package blob

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"eaglebatch/store/codec"
)

// sample is an entry as a test wrote it.
type sample struct {
	entry  Entry
	ids    []uint32
	mask   []byte
	data   []byte // [rows, layers, hidden], as it is given
	reason string // skipped, if not empty
}

func testMeta(codec, dtype string) Meta {
	return Meta{
		Generation: 3, Blob: 1, Layers: []int{2, 4, 8}, Hidden: 16, DType: dtype, LastPreNorm: true,
		Codec: codec, ChunkBytes: 160, Model: "m", Engine: "test 1", Datasets: []string{"A", "B"},
	}
}

// states makes values that look like hidden states: normal, scaled by channel.
func states(r *rand.Rand, dtype string, n, hidden int) []byte {
	var out []byte
	for i := range n {
		for c := range hidden {
			v := float32(r.NormFloat64() * math.Exp(math.Sin(float64(c)*1.7)) * (1 + float64(i%3)))
			switch dtype {
			case "bf16":
				out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(v)>>16))
			case "fp16":
				out = binary.LittleEndian.AppendUint16(out, uint16(math.Float32bits(v)>>13))
			case "fp32":
				out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
			case "fp8":
				if c == 0 {
					out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
				}
				out = append(out, byte(r.IntN(256)))
			}
		}
	}
	return out
}

func randomSample(r *rand.Rand, m Meta, rows int) sample {
	s := sample{entry: Entry{Dataset: uint32(r.IntN(len(m.Datasets))), Sample: r.Uint64(), Rows: uint32(rows)}}
	for i := range s.entry.Tokens {
		s.entry.Tokens[i], s.entry.Content[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	on := byte(r.IntN(2))
	for range rows {
		s.ids = append(s.ids, r.Uint32N(200_000))
		if r.IntN(6) == 0 {
			on ^= 1
		}
		s.mask = append(s.mask, on)
	}
	switch r.IntN(5) {
	case 0: // nothing to compress away
		s.data = make([]byte, rows*len(m.Layers)*m.RowBytes())
		for i := range s.data {
			s.data[i] = byte(r.Uint32())
		}
	case 1: // all alike
		s.data = make([]byte, rows*len(m.Layers)*m.RowBytes())
	default:
		s.data = states(r, m.DType, rows*len(m.Layers), m.Hidden)
	}
	return s
}

// write makes a blob of samples, rows in random pieces, others for each number
// of threads.
func write(tb testing.TB, path string, m Meta, o WriterOptions, samples []sample) Info {
	tb.Helper()
	ctx := context.Background()
	w, err := Create(path, m, o)
	if err != nil {
		tb.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, uint64(o.Threads)))
	step := len(m.Layers) * m.GivenRowBytes()
	for _, s := range samples {
		if s.reason != "" {
			if err := w.Skip(s.entry, s.reason); err != nil {
				tb.Fatal(err)
			}
			continue
		}
		if err := w.Begin(s.entry, s.ids, s.mask); err != nil {
			tb.Fatal(err)
		}
		for at := 0; at < len(s.ids); {
			n := r.IntN(len(s.ids)-at) + 1
			piece := bytes.Clone(s.data[at*step : (at+n)*step])
			if err := w.Rows(ctx, piece, n); err != nil {
				tb.Fatal(err)
			}
			clear(piece) // the writer may not look at it any more
			at += n
		}
		if err := w.End(); err != nil {
			tb.Fatal(err)
		}
	}
	info, err := w.Commit(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return info
}

// rowsOf says which rows a layer should hold, by the words of FORMAT.md.
func (s sample) rowsOf(m Meta, layer int) []uint32 {
	last := -1
	for t, v := range s.mask {
		if v == 1 {
			last = t
		}
	}
	super := (m.Rows == RowsLastSupervised || m.Rows == RowsBoth) && layer == len(m.Layers)-1
	tail := (m.Rows == RowsCutTail || m.Rows == RowsBoth) && last >= 0
	at := func(t int) bool { return t >= 0 && t < len(s.mask) && s.mask[t] == 1 }
	var out []uint32
	for t := range s.mask {
		if tail && t > last+1 || super && !at(t-1) && !at(t) && !at(t+1) {
			continue
		}
		out = append(out, uint32(t))
	}
	return out
}

// layerOf is what Reader.Layer should give.
func (s sample) layerOf(m Meta, layer int) []byte {
	var out []byte
	rb := m.GivenRowBytes()
	for _, t := range s.rowsOf(m, layer) {
		out = append(out, s.data[(int(t)*len(m.Layers)+layer)*rb:][:rb]...)
	}
	if m.Source != "" {
		out, _ = quantized(m, out)
	}
	return out
}

// quantized is what a writer makes of given rows, and what that costs.
func quantized(m Meta, given []byte) ([]byte, codec.RowLoss) {
	q, err := codec.NewQuantizer(m.Source, m.Hidden)
	if err != nil {
		panic(err)
	}
	out, loss, err := q.Rows(nil, given)
	if err != nil {
		panic(err)
	}
	return out, loss
}

// checkSample reads all of an entry; any difference is an error. Errors of the
// reader are returned as they are.
func checkSample(r *Reader, m Meta, i int, s sample) (wrong, failed error) {
	if s.reason != "" {
		if reason, absent := r.Absent(i); !absent || reason != s.reason {
			return fmt.Errorf("entry %d: absent %v, %q", i, absent, reason), nil
		}
		return nil, nil
	}
	if r.Entry(i) != s.entry {
		return fmt.Errorf("entry %d: %+v, want %+v", i, r.Entry(i), s.entry), nil
	}
	ids, err := r.IDs(i)
	if err != nil {
		failed = err
	} else if !slices.Equal(ids, s.ids) {
		return fmt.Errorf("entry %d: ids %v, want %v", i, ids, s.ids), nil
	}
	mask, err := r.Mask(i)
	if err != nil {
		failed = err
	} else if !bytes.Equal(mask, s.mask) {
		return fmt.Errorf("entry %d: mask %v, want %v", i, mask, s.mask), nil
	}
	losses, err := r.EntryLosses(i)
	if err != nil {
		failed = err
	} else if want := s.losses(m); !slices.Equal(losses, want) {
		return fmt.Errorf("entry %d: losses %v, want %v", i, losses, want), nil
	}
	for l := range m.Layers {
		want := s.layerOf(m, l)
		n := len(want) / m.RowBytes()
		if r.LayerLen(i, l) != n {
			return fmt.Errorf("entry %d layer %d: %d rows, want %d", i, l, r.LayerLen(i, l), n), nil
		}
		got := make([]byte, len(want))
		if err := r.Layer(got, i, l, 0, n); err != nil {
			failed = err
		} else if !bytes.Equal(got, want) {
			return fmt.Errorf("entry %d layer %d: wrong values", i, l), nil
		}
		rows, err := r.LayerRows(i, l)
		if err != nil {
			failed = err
		} else if rows == nil {
			if n != len(s.ids) {
				return fmt.Errorf("entry %d layer %d: no row numbers for %d of %d rows", i, l, n, len(s.ids)), nil
			}
		} else if !slices.Equal(rows, s.rowsOf(m, l)) {
			return fmt.Errorf("entry %d layer %d: rows %v, want %v", i, l, rows, s.rowsOf(m, l)), nil
		}
	}
	return nil, failed
}

func mustOpen(tb testing.TB, path string) *Reader {
	tb.Helper()
	r, err := Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := r.Close(); err != nil {
			tb.Error(err)
		}
	})
	return r
}

func blobPath(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "blob-000001.ebb")
}
