package blob

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Bool("update-format", false, "write the examples in store/FORMAT.md anew")
	os.Exit(m.Run())
}

// part is a labelled run of bytes of an example.
type part struct {
	n     int
	label string
}

// dump shows b in hex, each part with its offset and label.
func dump(b []byte, parts []part) string {
	var s strings.Builder
	at := 0
	for _, p := range parts {
		for k := 0; k < p.n || p.n == 0 && k == 0; k += 16 {
			line := b[at+k : at+min(p.n, k+16)]
			text := fmt.Sprintf("%06x  % x", at+k, line)
			if k == 0 {
				text = fmt.Sprintf("%-56s  %s", text, p.label)
			}
			s.WriteString(strings.TrimRight(text, " ") + "\n")
		}
		at += p.n
	}
	if at != len(b) {
		fmt.Fprintf(&s, "%d of %d bytes shown\n", at, len(b))
	}
	return s.String()
}

// exampleBlob is the blob of the worked example: two layers of two bf16 values,
// two rows a block, the last layer only around supervised rows.
func exampleBlob(t *testing.T, path string) []byte {
	t.Helper()
	m := Meta{
		Generation: 7, Layers: []int{1, 2}, Hidden: 2, DType: "bf16", LastPreNorm: true, Codec: "raw",
		ChunkBytes: 8, Rows: RowsLastSupervised, Model: "m", Engine: "example 1", Datasets: []string{"A", "B"},
	}
	w, err := Create(path, m, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hash := func(v byte) (h [16]byte) {
		for i := range h {
			h[i] = v
		}
		return h
	}
	// Row t of layer l, value c is t + l/2 + c/4.
	var data []byte
	for _, v := range []uint16{
		0x3f00, 0x3f40, 0x3f80, 0x3fa0, // 0.5 0.75, 1 1.25
		0x3fc0, 0x3fe0, 0x4000, 0x4010, // 1.5 1.75, 2 2.25
		0x4020, 0x4030, 0x4040, 0x4050, // 2.5 2.75, 3 3.25
		0x4060, 0x4070, 0x4080, 0x4088, // 3.5 3.75, 4 4.25
		0x4090, 0x4098, 0x40a0, 0x40a8, // 4.5 4.75, 5 5.25
	} {
		data = binary.LittleEndian.AppendUint16(data, v)
	}
	ctx := context.Background()
	steps := []func() error{
		func() error {
			return w.Begin(Entry{Dataset: 1, Sample: 9, Rows: 5, Tokens: hash(0x11), Content: hash(0x22)},
				[]uint32{11, 12, 13, 163_839, 15}, []byte{0, 0, 0, 1, 0})
		},
		func() error { return w.Rows(ctx, data, 5) },
		w.End,
		func() error {
			return w.Skip(Entry{Dataset: 0, Sample: 4, Rows: 3, Tokens: hash(0x33), Content: hash(0x44)}, "too long")
		},
		func() error { _, err := w.Commit(ctx); return err },
	}
	for _, do := range steps {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The example in FORMAT.md is what the writer writes.
func TestFormatExample(t *testing.T) {
	path := blobPath(t)
	b := exampleBlob(t, path)
	r := mustOpen(t, path)
	parts := []part{
		{8, "magic"}, {4, "version"}, {4, "features"}, {4, "J"}, {8, "reserved"}, {4, "crc32 of header"},
		{int(r.data) - headBytes, "header JSON"},
	}
	names := []string{"ids", "mask: 00010", "row map, layer 1: all", "row map, layer 2: rows 2 3 4"}
	for b := range 3 {
		for _, l := range r.meta.Layers {
			names = append(names, fmt.Sprintf("block %d, layer %d", b, l))
		}
	}
	for i, c := range r.chunks {
		parts = append(parts, part{int(c.enc), fmt.Sprintf("chunk %d: %s", i, names[i])})
	}
	for i := range r.entries {
		parts = append(parts, part{16, fmt.Sprintf("entry %d: sample, dataset, rows", i)}, part{16, "  hash of ids"},
			part{16, "  hash of ids and mask"}, part{16, "  first chunk, chunks, flags, reason"})
	}
	for i := range r.chunks {
		parts = append(parts, part{12, fmt.Sprintf("chunk %d: xxh64, crc32", i)}, part{12, "  raw, encoded, codec"})
	}
	parts = append(parts, part{8, "reasons"},
		part{16, "trailer: footer offset, length"}, part{12, "  E, C, S"}, part{12, "  reserved"},
		part{8, "  xxh64 of all before"}, part{8, "  crc32 of footer, of trailer"}, part{8, "  magic"})
	checkExample(t, "blob", dump(b, parts))
}

// checkExample compares a block of FORMAT.md, or writes it.
func checkExample(t *testing.T, name, want string) {
	t.Helper()
	const path = "../FORMAT.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, tail := "<!-- example:"+name+":begin -->\n```\n", "```\n<!-- example:"+name+":end -->"
	before, rest, ok := strings.Cut(string(b), head)
	got, after, ok2 := strings.Cut(rest, tail)
	if !ok || !ok2 {
		t.Fatalf("%s has no block for %s", path, name)
	}
	if got == want {
		return
	}
	if flag.Lookup("update-format").Value.String() != "true" {
		t.Fatalf("%s: the %s example is not what is written now; if that is meant, run go test -run TestFormatExample ./store/blob ./store/genindex -update-format\n%s", path, name, want)
	}
	if err := os.WriteFile(path, []byte(before+head+want+tail+after), 0o666); err != nil {
		t.Fatal(err)
	}
}
