package blob

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"eaglebatch/store/codec"
)

// losses is what quantizing a sample costs, by layer, as its entry says it.
func (s sample) losses(m Meta) []Loss {
	if m.Source == "" {
		return nil
	}
	out := make([]Loss, len(m.Layers))
	given := m
	given.DType, given.Source = m.Source, ""
	for l := range out {
		x := Loss{}
		row := given.RowBytes()
		for at, b := 0, s.layerOf(given, l); at < len(b); at += row {
			_, one := quantized(m, b[at:at+row])
			x.Rows++
			x.Sum += one.Sum
			x.Max = max(x.Max, one.Max)
		}
		mean := float64(float32(x.Mean()))
		out[l] = Loss{Rows: x.Rows, Sum: mean * float64(x.Rows), Max: float64(float32(x.Max))}
	}
	return out
}

func lossyMeta(by, source, rows string) Meta {
	m := testMeta(by, "fp8")
	m.Source, m.Rows = source, rows
	return m
}

// A writer that quantizes stores what the quantizer gives, says what it cost,
// and gives the same bytes however rows come and chunks are encoded.
func TestQuantizingWriter(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, by := range []string{"raw", "lz4", "lz4-planes", "dense"} {
		for _, source := range []string{"bf16", "fp32"} {
			for _, rows := range []string{"", RowsBoth} {
				m := lossyMeta(by, source, rows)
				var samples []sample
				for i := range 6 {
					s := randomSample(r, m, 1+r.IntN(60))
					s.data = states(r, source, len(s.ids)*len(m.Layers), m.Hidden)
					if i == 3 {
						s = sample{entry: Entry{Rows: 3}, reason: "refused"}
					}
					samples = append(samples, s)
				}
				path, again := blobPath(t), blobPath(t)
				info := write(t, path, m, WriterOptions{Threads: 1}, samples)
				if two := write(t, again, m, WriterOptions{Threads: 3}, samples); two.Hash != info.Hash || !slices.Equal(two.Losses, info.Losses) {
					t.Fatalf("%s from %s: %+v and %+v", by, source, info, two)
				}
				checkLossy(t, path, m, samples, info)
			}
		}
	}
}

func checkLossy(t *testing.T, path string, m Meta, samples []sample, info Info) {
	t.Helper()
	rd := mustOpen(t, path)
	if rd.Meta().Source != m.Source || rd.Meta().DType != "fp8" {
		t.Fatalf("header %+v", rd.Meta())
	}
	raw := int64(0)
	for i, s := range samples {
		if wrong, failed := checkSample(rd, m, i, s); wrong != nil || failed != nil {
			t.Fatal(wrong, failed)
		}
		for l := range m.Layers {
			raw += int64(rd.LayerLen(i, l) * m.RowBytes())
		}
	}
	if info.RawBytes != raw {
		t.Errorf("%d raw bytes, want %d", info.RawBytes, raw)
	}
	all, err := rd.Losses()
	if err != nil || !slices.Equal(all, info.Losses) || len(all) != len(m.Layers) {
		t.Fatalf("losses %v, the writer said %v (%v)", all, info.Losses, err)
	}
	for _, x := range all {
		if x.Rows == 0 || x.Mean() <= 0 || x.Max < x.Mean() || x.Max > 1.0/16 {
			t.Errorf("%+v is not what fp8 costs", x)
		}
	}
	if _, err := rd.Verify(context.Background(), func(d Damage) { t.Errorf("sound, but %+v", d) }); err != nil {
		t.Fatal(err)
	}
}

// The fp8 row in FORMAT.md is what the quantizer makes of the row before it.
func TestFormatRow(t *testing.T) {
	var given []byte
	for _, v := range []float32{3.5, -0.10009765625, 0.00099945068359375, 0} {
		b := math.Float32bits(v)
		if b&0xffff != 0 {
			t.Fatalf("%v is no bf16 number", v)
		}
		given = binary.LittleEndian.AppendUint16(given, uint16(b>>16))
	}
	m := lossyMeta("raw", "bf16", "")
	m.Hidden = 4
	row, loss := quantized(m, given)
	back, err := codec.DequantizeRows(nil, row, "fp32", 4)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for i := range 4 {
		values = append(values, fmt.Sprint(math.Float32frombits(binary.LittleEndian.Uint32(back[4*i:]))))
	}
	checkExample(t, "fp8", dump(row, []part{{4, "scale"}, {4, strings.Join(values, " ")}}))
	text, err := os.ReadFile("../FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("relative error of %.5g,", loss.Max); !strings.Contains(string(text), want) {
		t.Errorf("FORMAT.md lacks %q", want)
	}
}

// fp8 rows that come as such cost nothing that is known.
func TestGivenFP8HasNoLosses(t *testing.T) {
	m := testMeta("dense", "fp8")
	r := rand.New(rand.NewPCG(9, 9))
	path := blobPath(t)
	info := write(t, path, m, WriterOptions{}, []sample{randomSample(r, m, 9)})
	rd := mustOpen(t, path)
	if one, err := rd.EntryLosses(0); one != nil || err != nil || info.Losses != nil {
		t.Errorf("losses %v %v, %v", one, info.Losses, err)
	}
}

func TestQuantizingRefuses(t *testing.T) {
	for _, x := range [][2]string{{"bf16", "fp32"}, {"fp8", "fp8"}, {"fp8", "int4"}} {
		m := testMeta("raw", x[0])
		m.Source = x[1]
		if err := m.Validate(); err == nil {
			t.Errorf("%s from %s is taken", x[0], x[1])
		}
	}
	m := lossyMeta("raw", "fp32", "")
	w, err := Create(blobPath(t), m, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bad := make([]byte, len(m.Layers)*m.GivenRowBytes())
	binary.LittleEndian.PutUint32(bad[4:], math.Float32bits(float32(math.Inf(1))))
	err = errors.Join(w.Begin(Entry{Rows: 1}, []uint32{1}, []byte{1}), w.Rows(context.Background(), bad, 1), w.End())
	if err == nil {
		_, err = w.Commit(context.Background())
	}
	if err == nil || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("an infinite value: %v", err)
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}

// Losses that no writer writes are damage, even with checksums that fit.
func TestImpossibleLosses(t *testing.T) {
	m := lossyMeta("raw", "bf16", "")
	r := rand.New(rand.NewPCG(1, 9))
	s := randomSample(r, m, 5)
	s.data = states(r, m.Source, 5*len(m.Layers), m.Hidden)
	path := blobPath(t)
	write(t, path, m, WriterOptions{}, []sample{s})
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, path).chunks
	last := c[len(c)-1]
	if last.raw != lossBytes*3 {
		t.Fatalf("the last chunk has %d bytes", last.raw)
	}
	for _, v := range [][2]float32{{2, 2}, {0.1, 0.05}, {-1, 0}, {float32(math.NaN()), 1}} {
		b := file[last.off:]
		binary.LittleEndian.PutUint32(b, math.Float32bits(v[0]))
		binary.LittleEndian.PutUint32(b[4:], math.Float32bits(v[1]))
		if _, err := parseLoss(b, 5); err == nil {
			t.Errorf("%v is taken", v)
		}
	}
	if _, err := parseLoss(make([]byte, 8), 0); err != nil {
		t.Error(err)
	}
}
