package genindex

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/store/blob"
)

func TestMain(m *testing.M) {
	flag.Bool("update-format", false, "write the examples in store/FORMAT.md anew")
	os.Exit(m.Run())
}

func exampleMeta() blob.Meta {
	return blob.Meta{
		Generation: 7, Layers: []int{1, 2}, Hidden: 2, DType: "bf16", LastPreNorm: true, Codec: "raw", ChunkBytes: 8,
		Rows: blob.RowsLastSupervised, Model: "m", Engine: "example 1", Datasets: []string{"A", "B"},
	}
}

type part struct {
	n     int
	label string
}

// dump shows b in hex, each part with its offset and label.
func dump(b []byte, parts []part) string {
	var s strings.Builder
	at := 0
	for _, p := range parts {
		for k := 0; k < p.n; k += 16 {
			text := fmt.Sprintf("%06x  % x", at+k, b[at+k:at+min(p.n, k+16)])
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

// The examples in FORMAT.md are what is written: an index of one blob of two
// entries, the first at two positions, and an older generation at a third.
func TestFormatExample(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "index.ebi")
	w, err := Create(nil, path, Meta{Generation: 7, Datasets: []string{"A", "B"}, Blob: exampleMeta()})
	if err != nil {
		t.Fatal(err)
	}
	e := blob.Entry{Dataset: 1, Sample: 9, Rows: 5}
	absent := blob.Entry{Dataset: 0, Sample: 4, Rows: 3}
	for i := range e.Tokens {
		e.Tokens[i], e.Content[i] = 0x11, 0x22
		absent.Tokens[i], absent.Content[i] = 0x33, 0x44
	}
	w.Splits([]Split{{"train", 0, 2}, {"eval", 2, 1}})
	for _, do := range []func() error{
		func() error { return w.Blob([]blob.Entry{e, absent}) },
		func() error { return w.Position(Position{Rows: 5, Dataset: 1, Sample: 9}, nil) },
		func() error {
			return w.Position(Position{Gen: 5, Blob: 2, Entry: 40, Rows: 3, Dataset: 0, Sample: 6}, []byte{0, 1, 1})
		},
		func() error { return w.Position(Position{Rows: 4, Dataset: 0, Sample: 8}, nil) },
		w.Finish,
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseTrailer(b[len(b)-trailerBytes:], int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	parts := []part{{32, "header"}}
	for i := range 2 {
		parts = append(parts, part{16, fmt.Sprintf("entry %d: sample, dataset, rows", i)}, part{16, "  hash of ids"}, part{16, "  hash of ids and mask"})
	}
	for i := range 3 {
		parts = append(parts, part{24, fmt.Sprintf("position %d: generation, blob, entry, rows, dataset", i)}, part{16, "  sample, mask"})
	}
	parts = append(parts, part{16, "blob table"}, part{1, "masks: 011"}, part{int(s.meta), "meta JSON"}, part{4, "crc32 of block 0"},
		part{32, "trailer: N, B, P, M"}, part{16, "  J, block size, reserved"}, part{8, "  crc32 of meta, of trailer"}, part{8, "  magic"})
	checkExample(t, "index", dump(b, parts))

	_, err = WriteManifest(nil, dir, Manifest{
		Generation: 7, Name: "night", Kind: "states", Meta: exampleMeta(), Identity: []IdentityPart{{"model", "m"}},
		Plan: map[string]any{"max_tokens": 8192, "overlong": "truncate"}, Samples: 3, Tokens: 12, RawBytes: 32,
		Files: []ManifestFile{{"blob-000000.ebb", 1024, "0123456789abcdef"}, {"index.ebi", int64(len(b)), "fedcba9876543210"}},
		Needs: []Need{{5, "../000005", strings.Repeat("5a", 32)}}, Quarantined: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(filepath.Join(dir, ManifestName)); err != nil {
		t.Fatal(err)
	}
	checkExample(t, "manifest", string(b))
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
