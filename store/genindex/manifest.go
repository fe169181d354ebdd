package genindex

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

// ManifestName is the file that seals a generation.
const ManifestName = "MANIFEST.json"

// ManifestFormat is the newest manifest format that this package reads, and the
// one that it writes.
const ManifestFormat = 1

// Manifest is MANIFEST.json, written last: its presence seals a generation.
type Manifest struct {
	Format      int            `json:"format"` // set by WriteManifest
	Generation  uint32         `json:"generation"`
	Name        string         `json:"name"`
	Kind        string         `json:"kind"` // states, proof, repair
	Meta        blob.Meta      `json:"meta"`
	Identity    []IdentityPart `json:"identity"` // what must agree for reuse
	Plan        map[string]any `json:"plan"`     // max_tokens, overlong, drop, rows …: as planned
	Samples     int64          `json:"samples"`
	Tokens      int64          `json:"tokens"`
	RawBytes    int64          `json:"raw_bytes"`
	Files       []ManifestFile `json:"files"` // blobs, index.ebi, target_head.safetensors, by name
	Needs       []Need         `json:"needs"` // older generations the index points into
	Quarantined int64          `json:"quarantined"`
	// Quantization is what fp8 cost in the generation's own blobs, by layer.
	Quantization []Quantization `json:"quantization,omitempty"`
}

// Quantization is the relative error of a layer's rows: what was lost of a row
// over the row, by length.
type Quantization struct {
	Layer int     `json:"layer"`
	Rows  int64   `json:"rows"`
	Mean  float64 `json:"mean_error"`
	Max   float64 `json:"max_error"`
}

// IdentityPart is one key and value of a generation's identity.
type IdentityPart struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// ManifestFile is a file of the generation.
type ManifestFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"hash"` // xxh64 of the file, hex
}

// Need is an older generation, by its manifest.
type Need struct {
	Generation uint32 `json:"generation"`
	Path       string `json:"path"` // relative to this generation's directory
	Hash       string `json:"hash"` // of its MANIFEST.json
}

// The file is the manifest as JSON with a last key, the checksum of all that
// comes before it. It stands in the text, not in the struct, so that it can be
// checked without writing the JSON again.
const (
	sumHead = ",\n  \"checksum\": \""
	sumTail = "\"\n}\n"
)

// WriteManifest writes dir/MANIFEST.json atomically and returns its checksum, by
// which other generations name it. Files and needs are sorted.
func WriteManifest(fs *fsx.FS, dir string, m Manifest) (hash string, err error) {
	m.Format = ManifestFormat
	m.Files, m.Needs = slices.Clone(m.Files), slices.Clone(m.Needs)
	slices.SortFunc(m.Files, func(a, b ManifestFile) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Needs, func(a, b Need) int { return int(int64(a.Generation) - int64(b.Generation)) })
	path := filepath.Join(dir, ManifestName)
	js, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	body := bytes.TrimSuffix(js, []byte("\n}"))
	hash = sumText(body)
	err = fs.WriteFileAtomic(path, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s%s%s%s", body, sumHead, hash, sumTail)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hash, nil
}

// ReadManifest reads dir/MANIFEST.json and checks it. It fails with
// fs.ErrNotExist where the generation is not sealed, *blob.CorruptError for
// damage and *blob.NewerError for a newer format.
func ReadManifest(dir string) (m Manifest, hash string, err error) {
	path := filepath.Join(dir, ManifestName)
	data, err := fsx.ReadFile(path)
	if err != nil {
		return m, "", err
	}
	m, hash, err = parseManifest(data)
	if n, ok := err.(*blob.NewerError); ok {
		n.Path = path
		return Manifest{}, "", n
	}
	if err != nil {
		return Manifest{}, "", &blob.CorruptError{Path: path, What: "manifest", Err: err}
	}
	return m, hash, nil
}

func parseManifest(data []byte) (m Manifest, hash string, err error) {
	at := bytes.LastIndex(data, []byte(sumHead))
	if at < 0 {
		return m, "", errors.New("no checksum: the file was cut or edited")
	}
	hash = sumText(data[:at])
	if string(data[at:]) != sumHead+hash+sumTail {
		return m, "", fmt.Errorf("%w: the file was cut or edited", errChecksum)
	}
	var v struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return m, "", err
	}
	if v.Format > ManifestFormat {
		return m, "", &blob.NewerError{What: fmt.Sprintf("manifest format %d", v.Format)}
	}
	if v.Format < 1 {
		return m, "", fmt.Errorf("format %d", v.Format)
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, "", err
	}
	for _, f := range m.Files {
		// A name is joined to a directory and opened; it must stay inside.
		if f.Name == "" || f.Name != filepath.Base(f.Name) || f.Name == "." || f.Name == ".." {
			return m, "", fmt.Errorf("file name %q", f.Name)
		}
	}
	return m, hash, nil
}

func sumText(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
