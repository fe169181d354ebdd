package genindex

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

func testManifest() Manifest {
	return Manifest{
		Generation: 7, Name: "night", Kind: "states", Meta: testMeta().Blob,
		Identity: []IdentityPart{{"model", "abc"}, {"layers", "2,8"}},
		Plan:     map[string]any{"overlong": "truncate", "max_tokens": float64(8192), "drop": []any{"A1"}},
		Samples:  3, Tokens: 30, RawBytes: 480, Quarantined: 1,
		Files: []ManifestFile{{"index.ebi", 10, "00000000000000aa"}, {"blob-000000.ebb", 20, "00000000000000bb"}},
		Needs: []Need{{5, "../000005", "ee"}, {2, "../000002", "dd"}},
	}
}

func TestManifestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := ReadManifest(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unsealed: %v", err)
	}
	m := testManifest()
	hash, err := WriteManifest(nil, dir, m)
	if err != nil {
		t.Fatal(err)
	}
	if m.Files[0].Name != "index.ebi" {
		t.Error("the caller's files were sorted")
	}
	first, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	got, hash2, err := ReadManifest(dir)
	if err != nil || hash != hash2 || len(hash) != 64 {
		t.Fatalf("%s, %s, %v", hash, hash2, err)
	}
	m.Format = 1
	m.Files[0], m.Files[1] = m.Files[1], m.Files[0]
	m.Needs[0], m.Needs[1] = m.Needs[1], m.Needs[0]
	if diff := cmp.Diff(m, got); diff != "" {
		t.Error(diff)
	}
	if again, err := WriteManifest(nil, dir, got); err != nil || again != hash {
		t.Errorf("written again: %s, %v", again, err)
	}
	second, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("other bytes the second time (%v)", err)
	}
}

func TestManifestIsDurableInOrder(t *testing.T) {
	var ops []string
	f := &fsx.FS{Trace: func(o fsx.Op) { ops = append(ops, string(o.Kind)) }}
	if _, err := WriteManifest(f, t.TempDir(), testManifest()); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(ops, " "), "create write fsync close rename dirsync"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestManifestDamage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ManifestName)
	if _, err := WriteManifest(nil, dir, testManifest()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, _, err := parseManifest(b); err == nil {
				t.Fatalf("bit %d of byte %d flipped: accepted", bit, i)
			}
			b[i] ^= 1 << bit
		}
		if _, _, err := parseManifest(b[:i]); err == nil {
			t.Fatalf("cut to %d: accepted", i)
		}
	}
	if _, _, err := parseManifest(append(bytes.Clone(b), '\n')); err == nil {
		t.Error("appended to: accepted")
	}
	var bad *blob.CorruptError
	if err := os.WriteFile(path, b[:100], 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadManifest(dir); !errors.As(err, &bad) || bad.Path != path {
		t.Errorf("got %v", err)
	}
}

func TestManifestRefuses(t *testing.T) {
	seal := func(body string) []byte { return []byte(body + sumHead + sumText([]byte(body)) + sumTail) }
	var newer *blob.NewerError
	if _, _, err := parseManifest(seal("{\n  \"format\": 2, \"files\": 5")); !errors.As(err, &newer) {
		t.Errorf("newer: %v", err)
	}
	for _, body := range []string{`{"format": 0`, `{`, `[`, `{"format": 1, "files": [{"name": "../x"}]`, `{"format": 1, "files": [{"name": ""}]`} {
		if _, _, err := parseManifest(seal(body)); err == nil || errors.As(err, &newer) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"format": 1, "files": [{"name": "index.ebi"}]`))
	f.Add([]byte(`{"format": 1, "plan": {"a": [1]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		data := append(bytes.Clone(body), sumHead+sumText(body)+sumTail...)
		m, hash, err := parseManifest(data)
		if err == nil && (hash != sumText(body) || m.Format != 1) {
			t.Errorf("format %d, hash %s", m.Format, hash)
		}
		if _, _, err := parseManifest(body); err == nil && !bytes.Contains(body, []byte(sumHead)) {
			t.Error("accepted without a checksum")
		}
	})
}

func TestLease(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "000007")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without LEASE: %v", err)
	}
	for range 2 {
		if err := CreateLease(nil, dir); err != nil {
			t.Fatal(err)
		}
	}
	a, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Exclude(dir); !errors.Is(err, ErrLeased) {
		t.Errorf("read by one: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	gc, err := Exclude(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Hold(dir); !errors.Is(err, ErrGoing) {
		t.Errorf("while gc works: %v", err)
	}
	// A reader that had opened the file before the directory was moved.
	f, err := os.Open(filepath.Join(dir, LeaseName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, filepath.Join(root, "trash")); err != nil {
		t.Fatal(err)
	}
	if err := same(f, filepath.Join(dir, LeaseName)); !errors.Is(err, ErrGoing) {
		t.Errorf("after the move: %v", err)
	}
	if err := errors.Join(f.Close(), gc.Close()); err != nil {
		t.Fatal(err)
	}
}
