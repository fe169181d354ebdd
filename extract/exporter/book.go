package exporter

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"

	"eaglebatch/internal/fsx"
)

// Names of what an export of states keeps beside the files.
const (
	bookName  = "export.json" // what it is an export of
	filesName = "files.jsonl" // a line a file: path, bytes, xxh64
)

// identity is what an export is made from; two that differ are never mixed in
// one directory.
type identity struct {
	Layout     string `json:"layout"`
	Generation uint32 `json:"generation"`
	Manifest   string `json:"manifest"` // checksum of the generation's MANIFEST.json
	Split      string `json:"split"`
	Samples    int64  `json:"samples"`
	DType      string `json:"dtype"`
	Hidden     int    `json:"hidden_size"`
	Layers     []int  `json:"layers"`
	LastNormed bool   `json:"last_normed"`
	Model      string `json:"model"`
	Engine     string `json:"engine"`
	Synthetic  bool   `json:"synthetic"`
}

// bookDoc is export.json.
type bookDoc struct {
	identity
	Done bool `json:"done"`
}

// entry is a line of files.jsonl.
type entry struct {
	I     int64  `json:"i"`
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
	Hash  string `json:"xxh64"`

	had    bool
	tokens int64
}

const none = -1

// book knows which files of an export are in place. A file is entered after it
// is durable under its name, so what is entered and has its size is complete.
type book struct {
	fs   *fsx.FS
	dir  string
	doc  bookDoc
	f    *fsx.File
	size []int64 // of the file of each sample; none: not entered
}

// openBook begins an export in dir or goes on with the same one.
func openBook(fs *fsx.FS, dir string, id identity) (*book, error) {
	b := &book{fs: fs, dir: dir, doc: bookDoc{identity: id}, size: make([]int64, id.Samples)}
	for i := range b.size {
		b.size[i] = none
	}
	path := filepath.Join(dir, bookName)
	data, err := fsx.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := b.begin(); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		var had bookDoc
		if err := json.Unmarshal(data, &had); err != nil {
			return nil, fmt.Errorf("%s: %w: delete the directory, or choose another", path, err)
		}
		if !reflect.DeepEqual(had.identity, id) {
			return nil, fmt.Errorf("%s: %w: it is an export of generation %d (%s, split %s, manifest %s)", path, ErrExists, had.Generation, had.Layout, had.Split, had.Manifest)
		}
	}
	if b.f, err = fs.OpenFile(filepath.Join(dir, filesName), os.O_RDWR|os.O_CREATE); err != nil {
		return nil, err
	}
	if err := b.load(); err != nil {
		return nil, errors.Join(err, b.f.Close())
	}
	return b, nil
}

func (b *book) begin() error {
	ents, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, e := range ents {
		if e.Name() != bookName+fsx.TempSuffix {
			return fmt.Errorf("%s: %w: it holds %s and no %s", b.dir, ErrExists, e.Name(), bookName)
		}
	}
	return b.write()
}

func (b *book) write() error {
	return b.fs.WriteFileAtomic(filepath.Join(b.dir, bookName), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(b.doc)
	})
}

// load reads the lines there are. What follows the last whole one is a write
// that a crash cut short.
func (b *book) load() error {
	r := bufio.NewReaderSize(b.f.OS(), 1<<16)
	var end int64
	for {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
			break
		}
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil || e.I < 0 || e.I >= b.doc.Samples {
			break // of a crash too: lines are not synced one by one
		}
		b.size[e.I] = e.Bytes
		end += int64(len(line))
	}
	if err := b.f.Truncate(end); err != nil {
		return err
	}
	_, err := b.f.Seek(end, io.SeekStart)
	return err
}

// has tells whether sample i is entered.
func (b *book) has(i int64) bool {
	return b.size[i] != none
}

// look returns the size of the file of sample i if it is there in full.
func (b *book) look(i int64, path string) (int64, bool) {
	if !b.has(i) {
		return 0, false
	}
	st, err := os.Stat(path)
	return b.size[i], err == nil && st.Mode().IsRegular() && st.Size() == b.size[i]
}

func (b *book) add(e entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = b.f.Write(append(line, '\n'))
	return err
}

// finish makes the list durable, then says that the export is complete.
func (b *book) finish() error {
	if err := b.f.Sync(); err != nil {
		return err
	}
	b.doc.Done = true
	return b.write()
}

// Close closes the list.
func (b *book) Close() error { return b.f.Close() }
