package blob

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"testing"
)

// damageCase is a small blob, in memory, and what is in it.
type damageCase struct {
	meta    Meta
	samples []sample
	file    []byte
}

func damageCases(tb testing.TB) []damageCase {
	tb.Helper()
	r := rand.New(rand.NewPCG(11, 12))
	var out []damageCase
	for _, codec := range []string{"raw", "lz4", "lz4-planes", "dense", "fp8"} {
		m := testMeta(codec, "bf16")
		if codec == "fp8" {
			m.Codec, m.DType, m.Source = "lz4-planes", "fp8", "fp32"
		}
		m.ChunkBytes, m.Rows, m.Hidden = 2048, RowsBoth, 32
		c := damageCase{meta: m}
		for i := range 3 {
			s := sample{entry: Entry{Rows: 3, Sample: 9}, reason: "out of memory"}
			if i != 1 {
				s = randomSample(r, m, 40)
				s.data = states(r, m.GivenDType(), 40*len(m.Layers), m.Hidden)
			}
			c.samples = append(c.samples, s)
		}
		path := blobPath(tb)
		write(tb, path, m, WriterOptions{Threads: 1}, c.samples)
		var err error
		if c.file, err = os.ReadFile(path); err != nil {
			tb.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// mustReport holds a damaged file to the promise: Verify reports it, and what is
// read is right or an error.
func (c damageCase) mustReport(t *testing.T, what string, file []byte) {
	t.Helper()
	r, err := newReader("x", bytes.NewReader(file), int64(len(file)))
	var bad *CorruptError
	if errors.As(err, &bad) {
		return
	}
	if err != nil {
		t.Fatalf("%s: %v: %v is not damage", c.meta.Codec, what, err)
	}
	found := 0
	if _, err := r.Verify(context.Background(), func(Damage) { found++ }); err != nil || found == 0 {
		t.Fatalf("%s: %s: not reported (%v)", c.meta.Codec, what, err)
	}
	if r.Entries() != len(c.samples) {
		t.Fatalf("%s: %s: %d entries", c.meta.Codec, what, r.Entries())
	}
	for i, s := range c.samples {
		wrong, failed := checkSample(r, c.meta, i, s)
		if wrong != nil {
			t.Fatalf("%s: %s: %v", c.meta.Codec, what, wrong)
		}
		if failed != nil && !errors.As(failed, &bad) {
			t.Fatalf("%s: %s: %v is not damage", c.meta.Codec, what, failed)
		}
	}
}

func TestEveryBitCounts(t *testing.T) {
	for _, c := range damageCases(t) {
		foot := int(binary.LittleEndian.Uint64(c.file[len(c.file)-trailerBytes:]))
		for i := range c.file {
			// Chunks are many bytes of one kind: every fifth will do.
			if i > 500 && i < foot && i%5 != 0 {
				continue
			}
			c.file[i] ^= 1 << (i % 8)
			c.mustReport(t, "bit flipped", c.file)
			c.file[i] ^= 1 << (i % 8)
		}
		for n := range len(c.file) {
			if n%31 == 0 || n < 200 || n > len(c.file)-200 {
				c.mustReport(t, "cut", c.file[:n])
			}
		}
	}
}

func TestRandomMutations(t *testing.T) {
	cases := damageCases(t)
	r := rand.New(rand.NewPCG(20, 26))
	for i := range 10_000 {
		c := cases[i%len(cases)]
		file := bytes.Clone(c.file)
		at := r.IntN(len(file))
		what := ""
		switch r.IntN(6) {
		case 0:
			what = "cut"
			file = file[:at]
		case 1:
			what = "byte appended"
			file = append(file, byte(r.Uint32()))
		case 2:
			what = "byte removed"
			file = append(file[:at], file[at+1:]...)
		case 3:
			what = "zeros"
			clear(file[at:min(len(file), at+1+r.IntN(64))])
		case 4:
			what = "swapped"
			to := r.IntN(len(file))
			n := min(1+r.IntN(32), len(file)-at, len(file)-to)
			copy(file[at:at+n], c.file[to:to+n])
		default:
			what = "bits"
			for range 1 + r.IntN(4) {
				file[r.IntN(len(file))] ^= 1 << r.IntN(8)
			}
		}
		if !bytes.Equal(file, c.file) {
			c.mustReport(t, what, file)
		}
	}
}

// Verify names entry, layer and rows of what is damaged, and goes on.
func TestVerifyNamesTheDamage(t *testing.T) {
	m := testMeta("raw", "bf16") // 32 bytes a row, 5 rows a block
	r := rand.New(rand.NewPCG(1, 1))
	samples := []sample{randomSample(r, m, 12), randomSample(r, m, 7)}
	path := blobPath(t)
	write(t, path, m, WriterOptions{}, samples)
	sound := mustOpen(t, path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hit := []int{0, 2 + 2*3 + 1, int(sound.entries[1].first) + 1} // ids; last block of layer 1; mask
	for _, k := range hit {
		b[sound.chunks[k].off] ^= 4
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	var got []Damage
	if _, err := VerifyFile(context.Background(), path, func(d Damage) {
		if d.Err == nil || d.Path != path {
			t.Errorf("%+v", d)
		}
		d.Err, d.Path = nil, ""
		got = append(got, d)
	}); err != nil {
		t.Fatal(err)
	}
	want := []Damage{
		{Entry: 0, Layer: -1, First: 0, Rows: 12},
		{Entry: 0, Layer: 1, First: 10, Rows: 2},
		{Entry: 1, Layer: -1, First: 0, Rows: 7},
	}
	for i := range want {
		want[i].Offset, want[i].Bytes = sound.chunks[hit[i]].off, int64(sound.chunks[hit[i]].enc)
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
}

func TestVerifyFileThatDoesNotOpen(t *testing.T) {
	path := blobPath(t)
	if err := os.WriteFile(path, []byte("EBBLOB\r\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	n := 0
	if _, err := VerifyFile(context.Background(), path, func(d Damage) {
		if n++; d.Entry != -1 || d.Path != path {
			t.Errorf("%+v", d)
		}
	}); err != nil || n != 1 {
		t.Errorf("%d reports, %v", n, err)
	}
}

// A file that shrinks while it is open is an error, not a signal.
func TestCutWhileOpen(t *testing.T) {
	c := damageCases(t)[2]
	path := blobPath(t)
	if err := os.WriteFile(path, c.file, 0o666); err != nil {
		t.Fatal(err)
	}
	r := mustOpen(t, path)
	if err := os.Truncate(path, 300); err != nil {
		t.Fatal(err)
	}
	var bad *CorruptError
	if _, failed := checkSample(r, c.meta, 0, c.samples[0]); !errors.As(failed, &bad) {
		t.Errorf("got %v", failed)
	}
	n := 0
	if _, err := r.Verify(context.Background(), func(Damage) { n++ }); err != nil || n == 0 {
		t.Errorf("%d reports, %v", n, err)
	}
}

func TestNewerIsToldFromDamage(t *testing.T) {
	c := damageCases(t)[0]
	js := binary.LittleEndian.Uint32(c.file[16:])
	reseal := func(b []byte) {
		sum := crc32.Update(crc32.ChecksumIEEE(b[:28]), crc32.IEEETable, b[headBytes:headBytes+js])
		binary.LittleEndian.PutUint32(b[28:], sum)
	}
	var newer *NewerError
	var bad *CorruptError
	for _, at := range []int{8, 12} { // version, features
		b := bytes.Clone(c.file)
		b[at] += 2
		if _, err := newReader("x", bytes.NewReader(b), int64(len(b))); !errors.As(err, &bad) {
			t.Errorf("byte %d damaged: %v", at, err)
		}
		reseal(b)
		if _, err := newReader("x", bytes.NewReader(b), int64(len(b))); !errors.As(err, &newer) {
			t.Errorf("byte %d newer: %v", at, err)
		}
	}
	b := bytes.Clone(c.file)
	foot := binary.LittleEndian.Uint64(b[len(b)-trailerBytes:])
	entries := uint64(len(c.samples)) * entryBytes
	b[foot+entries+20] = 9
	resealFooter(b)
	if _, err := newReader("x", bytes.NewReader(b), int64(len(b))); !errors.As(err, &newer) || newer.Path != "x" {
		t.Errorf("unknown codec: %v", err)
	}
}

// resealFooter makes the checksums of footer and trailer right again.
func resealFooter(b []byte) {
	if len(b) < trailerBytes {
		return
	}
	end := b[len(b)-trailerBytes:]
	off, n := binary.LittleEndian.Uint64(end), binary.LittleEndian.Uint64(end[8:])
	if off <= uint64(len(b)) && n <= uint64(len(b))-off {
		binary.LittleEndian.PutUint32(end[48:], crc32.ChecksumIEEE(b[off:off+n]))
	}
	binary.LittleEndian.PutUint32(end[52:], crc32.ChecksumIEEE(end[:52]))
	copy(end[56:], magicTail)
}
