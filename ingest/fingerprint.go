package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"eaglebatch/store"
)

// partSources is the key in DatasetRow.Fingerprint of the identity of the
// dataset's files.
const partSources = "sources"

// formatVersion changes whenever the same sources would merge to other
// samples.
const formatVersion = "2"

// Fingerprint returns the parts that a merge depends on: options, and one
// "dataset NAME" part a dataset, in order, from its sources as they are now.
// A dataset that was begun is hashed again only where size or mtime differ from
// what is recorded; the recorded value stands where its content is the same, or
// where it is merged and sources of it are gone. One not begun yet is told by
// its files' names and sizes. Appending datasets only appends parts.
//
// MaxRejects is no part: it decides when to stop, not what is merged.
func Fingerprint(ctx context.Context, r store.Reader, o Options) ([]store.Part, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	rows, err := r.Datasets()
	if err != nil {
		return nil, err
	}
	known := map[string]store.DatasetRow{}
	for _, row := range rows {
		known[row.Name] = row
	}
	parts := []store.Part{
		{Key: "merge format", Value: formatVersion},
		{Key: "vocab_size", Value: strconv.Itoa(o.VocabSize)},
		{Key: "merge.dedup", Value: o.Dedup},
		{Key: "merge.min_loss_tokens", Value: strconv.Itoa(o.MinLossTokens)},
	}
	for _, d := range o.Datasets {
		v, err := datasetIdentity(ctx, d, known[d.Name])
		if err != nil {
			return nil, err
		}
		parts = append(parts, store.Part{Key: "dataset " + d.Name, Value: v})
	}
	return parts, nil
}

// identity describes files by name and size, directories apart, so that a data
// set may be moved.
func identity(files []source) string {
	h, size := sha256.New(), int64(0)
	for _, f := range files {
		fmt.Fprintf(h, "%q %d\n", filepath.Base(f.path), f.size)
		size += f.size
	}
	return fmt.Sprintf("%d files, %d bytes, %s", len(files), size, hex.EncodeToString(h.Sum(nil)[:8]))
}

func datasetIdentity(ctx context.Context, d Dataset, row store.DatasetRow) (string, error) {
	recorded := ""
	for _, p := range row.Fingerprint {
		if p.Key == partSources {
			recorded = p.Value
		}
	}
	files, err := expand(d)
	if row.Done && (errors.Is(err, errNoFiles) || errors.Is(err, os.ErrNotExist)) {
		return recorded, nil
	}
	if err != nil {
		return "", err
	}
	if recorded == "" {
		return identity(files), nil
	}
	same, sum, err := unchanged(ctx, files, row)
	if err != nil || same {
		return recorded, err
	}
	return identity(files) + ", content " + sum, nil
}

// unchanged compares files with the recorded ones. sum tells apart contents
// that have the same names and sizes.
func unchanged(ctx context.Context, files []source, row store.DatasetRow) (same bool, sum string, err error) {
	h := sha256.New()
	same, at := true, 0
	for _, f := range files {
		for row.Done && at < len(row.Sources) && filepath.Base(row.Sources[at].Path) != filepath.Base(f.path) {
			at++ // merged, and gone since
		}
		if at == len(row.Sources) {
			return false, "with other files", nil
		}
		was := row.Sources[at]
		at++
		if f.size == was.Size && f.mtime == was.ModTime {
			fmt.Fprintln(h, was.Hash)
			continue
		}
		now, err := hashFile(ctx, f.path)
		if err != nil {
			return false, "", err
		}
		fmt.Fprintln(h, now)
		same = same && f.size == was.Size && now == was.Hash
	}
	if at < len(row.Sources) && !row.Done {
		return false, "with fewer files", nil
	}
	return same, hex.EncodeToString(h.Sum(nil)[:8]), nil
}

func hashFile(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}
