package store

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"eaglebatch/internal/fsx"
)

const markerName = "EAGLEBATCH"

// Format is the version of the workspace's layout that this program writes.
// It reads every version up to this one.
const Format = 1

// marker makes a directory a workspace.
type marker struct {
	RootID string `json:"root_id"`
	Format int    `json:"format"`
}

func readMarker(dir string) (marker, error) {
	var m marker
	path := filepath.Join(dir, markerName)
	b, err := fsx.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, noMarker(dir, path)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, &CorruptError{Path: path, Offset: -1, Err: err, Hint: hintRebuildMarker}
	}
	if m.Format > Format {
		return m, fmt.Errorf("%s: format %d, this program knows formats up to %d: %w", dir, m.Format, Format, ErrNewer)
	}
	if m.RootID == "" || m.Format < 1 {
		return m, &CorruptError{Path: path, Offset: -1, Err: errors.New("root id or format missing"), Hint: hintRebuildMarker}
	}
	return m, nil
}

// noMarker tells a directory that is no workspace (also one that a crash left
// while it was made) from a workspace that has lost its marker.
func noMarker(dir, path string) error {
	h, err := readLog(dir)
	if h.seq <= 1 {
		return fmt.Errorf("%s: %w", dir, ErrNoWorkspace)
	}
	return &CorruptError{Path: path, Offset: -1, Err: errors.Join(fmt.Errorf("is missing, but there is a ledger of %d steps", h.seq), err), Hint: hintRebuildMarker}
}

func writeMarker(fsys *fsx.FS, dir string, m marker) error {
	return fsys.WriteFileAtomic(filepath.Join(dir, markerName), func(w io.Writer) error {
		return json.NewEncoder(w).Encode(m)
	})
}

// checkRoot fails where a ledger, read from path, is that of another workspace.
func checkRoot(path string, s state, m marker) error {
	root := string(s[bucketMeta][keyRoot])
	if root == m.RootID {
		return nil
	}
	return &CorruptError{Path: path, Key: bucketMeta + "/" + keyRoot, Offset: -1,
		Err:  fmt.Errorf("belongs to workspace %q, the marker says %q", root, m.RootID),
		Hint: "put the files EAGLEBATCH, checkpoints.jsonl and manifest.db back that belong together; where the latter two do, 'eaglebatch check --rebuild-marker' makes EAGLEBATCH anew from them"}
}

const hintRebuildMarker = "'eaglebatch check --rebuild-marker' makes EAGLEBATCH anew from checkpoints.jsonl"

func newRootID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails; see crypto/rand
	return hex.EncodeToString(b[:])
}
