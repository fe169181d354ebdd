package ingest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"

	"github.com/cespare/xxhash/v2"
)

// reject is a line of rejects/DATASET.jsonl: where the rejected line is, why it
// was rejected, and the line itself. Exactly one of Text and Base64 is there
// (neither for an empty line); Base64 where the line is no UTF-8.
type rejectLine struct {
	File      string `json:"file"`
	Line      int64  `json:"line"`   // 1-based
	Offset    int64  `json:"offset"` // of the line in the uncompressed file
	Bytes     int64  `json:"bytes"`  // its length, line ending apart
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Truncated bool   `json:"truncated,omitempty"` // only the beginning is kept
	Text      string `json:"text,omitempty"`
	Base64    []byte `json:"base64,omitempty"`
}

// rejects appends to a dataset's file of rejected lines.
type rejects struct {
	f    *fsx.File
	buf  bytes.Buffer
	size int64 // of the file, buffered bytes included
}

// openRejects opens path and cuts it to size, the ledger's cursor.
func openRejects(fs *fsx.FS, path string, size int64) (*rejects, error) {
	if err := fs.MkdirAll(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := fs.OpenFile(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	r := &rejects{f: f, size: size}
	if err := r.prepare(fs); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return r, nil
}

func (r *rejects) prepare(fs *fsx.FS) error {
	st, err := r.f.OS().Stat()
	if err != nil {
		return err
	}
	if st.Size() < r.size {
		return shortRejects(r.f.Name(), st.Size(), r.size)
	}
	if err := r.f.Truncate(r.size); err != nil {
		return err
	}
	if _, err := r.f.Seek(r.size, io.SeekStart); err != nil {
		return err
	}
	if err := r.f.Sync(); err != nil {
		return err
	}
	return fs.SyncDir(filepath.Dir(r.f.Name()))
}

func shortRejects(path string, size, want int64) error {
	return &store.CorruptError{Path: path, Offset: -1, Err: fmt.Errorf("has %d bytes, the ledger counts %d: rejected lines are lost", size, want),
		Hint: "restore " + path + " from a copy; without one, 'eaglebatch run --redo merge' makes it anew from the sources"}
}

// hashRejects returns the xxh64, in hex, of a file of size bytes.
func hashRejects(path string, size int64) (hash string, err error) {
	f, err := fsx.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", shortRejects(path, 0, size)
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := xxhash.New()
	n, err := io.Copy(h, f)
	if err == nil && n != size {
		return "", shortRejects(path, n, size)
	}
	return fmt.Sprintf("%016x", h.Sum64()), err
}

// add keeps a rejected line; text may be its beginning only.
func (r *rejects) add(l rejectLine, text []byte) error {
	if len(text) > keptLine {
		text = text[:keptLine]
	}
	l.Truncated = int64(len(text)) < l.Bytes
	if utf8.Valid(text) {
		l.Text = string(text)
	} else {
		l.Base64 = text
	}
	before := r.buf.Len()
	e := json.NewEncoder(&r.buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(l); err != nil {
		return err
	}
	r.size += int64(r.buf.Len() - before)
	if r.buf.Len() >= keptLine {
		return r.flush()
	}
	return nil
}

func (r *rejects) flush() error {
	if r.buf.Len() == 0 {
		return nil
	}
	_, err := r.f.Write(r.buf.Bytes())
	r.buf.Reset()
	return err
}

// sync makes what was added durable.
func (r *rejects) sync() error {
	if err := r.flush(); err != nil {
		return err
	}
	return r.f.Sync()
}

func (r *rejects) close() error { return r.f.Close() }

// firstRejects reads the first n lines of a rejects file, for a message.
func firstRejects(path string, n int) ([]string, error) {
	f, err := fsx.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	dec := json.NewDecoder(bufio.NewReader(f))
	for len(out) < n {
		var l rejectLine
		err := dec.Decode(&l)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, fmt.Sprintf("%s:%d: offset %d: %s: %s", l.File, l.Line, l.Offset, l.Reason, l.Message))
	}
	return out, nil
}
