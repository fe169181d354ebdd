package states

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

// Problem is one thing that is not as it was committed.
type Problem struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"` // -1 where it has none
	Blob   int    `json:"blob"`   // -1: not a blob
	Entry  int    `json:"entry"`  // -1: the whole file is hit
	Sample string `json:"sample,omitempty"`
	Layer  int    `json:"layer"` // layer id; -1: ids, mask or all
	First  int    `json:"first_row"`
	Rows   int    `json:"rows"`
	Error  string `json:"error"`
	// Generation it is in, 0 where none; and what helps, where that is known.
	Generation uint32 `json:"generation,omitempty"`
	Hint       string `json:"hint,omitempty"`
}

// String is the problem in one line.
func (p Problem) String() string {
	s := p.Path
	if p.Offset >= 0 {
		s += fmt.Sprintf(" at byte %d", p.Offset)
	}
	if p.Entry >= 0 {
		s += fmt.Sprintf(": entry %d (%s)", p.Entry, p.Sample)
		if p.Layer >= 0 {
			s += fmt.Sprintf(", layer %d", p.Layer)
		}
		if p.Rows > 0 {
			s += fmt.Sprintf(", rows %d to %d", p.First, p.First+p.Rows-1)
		}
	}
	return s + ": " + p.Error
}

// VerifyOptions says how much is looked at.
type VerifyOptions struct {
	Full bool  // decode and hash every chunk; else existence, sizes, manifest
	Rate int64 // bytes a second at most; 0: no bound
	// Skip leaves out a file, for a subset or one checked before; may be nil.
	Skip func(name string) bool
	// Done is told of each file that was looked at; may be nil.
	Done func(name string, read int64)
	// Sound looks further at a blob, open, that is what was committed; its error is
	// a problem. May be nil.
	Sound func(*blob.Reader) error
	// Owned says whose extra files are no problem; may be nil.
	Owned func(name string) bool
}

// Verify compares the files of the generation in dir with what files says of
// them, and reports each problem. It goes on after problems; its error says
// that it could not look.
func Verify(ctx context.Context, dir string, files []genindex.ManifestFile, o VerifyOptions, report func(Problem)) error {
	v := &verifier{ctx: ctx, dir: dir, o: o, report: report, began: time.Now()}
	known := map[string]bool{ManifestName: true, PlanName: true, IndexName: true, "LEASE": true}
	for _, f := range files {
		known[f.Name] = true
		if o.Skip != nil && o.Skip(f.Name) {
			continue
		}
		if err := v.file(f); err != nil {
			return err
		}
		if o.Done != nil {
			o.Done(f.Name, f.Bytes)
		}
	}
	return v.extra(known)
}

type verifier struct {
	ctx    context.Context
	dir    string
	o      VerifyOptions
	report func(Problem)
	began  time.Time
	read   int64
}

func (v *verifier) problem(name string, err error) {
	v.report(Problem{Path: filepath.Join(v.dir, name), Offset: -1, Blob: blobNo(name), Entry: -1, Layer: -1, Error: err.Error()})
}

func (v *verifier) file(f genindex.ManifestFile) error {
	path := filepath.Join(v.dir, f.Name)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		v.problem(f.Name, errors.New("is missing"))
		return nil
	case err != nil:
		v.problem(f.Name, err)
		return nil
	case !st.Mode().IsRegular():
		v.problem(f.Name, fmt.Errorf("is %s, not a regular file", st.Mode().Type()))
		return nil
	}
	short := st.Size() != f.Bytes
	if short {
		v.problem(f.Name, fmt.Errorf("has %d bytes, want %d", st.Size(), f.Bytes))
	}
	if !v.o.Full {
		return nil
	}
	if blobNo(f.Name) >= 0 {
		return v.blob(path, f, short)
	}
	return v.plain(path, f, short)
}

// plain hashes a file that is not a blob; an index is checked inside too.
func (v *verifier) plain(path string, f genindex.ManifestFile, short bool) error {
	hash, err := blob.HashFile(v.ctx, path)
	if v.ctx.Err() != nil {
		return v.ctx.Err()
	}
	switch {
	case err != nil:
		v.problem(f.Name, err)
	case hash != f.Hash && !short:
		v.problem(f.Name, fmt.Errorf("hash is %s, want %s", hash, f.Hash))
	}
	return v.pace(f.Bytes)
}

func (v *verifier) blob(path string, f genindex.ManifestFile, found bool) error {
	r, err := blob.Open(path)
	if err != nil {
		var c *blob.CorruptError
		p := Problem{Path: path, Offset: -1, Blob: blobNo(f.Name), Entry: -1, Layer: -1, Error: err.Error()}
		if errors.As(err, &c) {
			p.Offset = c.Offset
			p.Error = fmt.Sprintf("%s: %v", c.What, c.Err)
		}
		v.report(p)
		return nil
	}
	defer r.Close()
	m := r.Meta()
	hash, _, err := r.VerifyPaced(v.ctx, v.pace, func(d blob.Damage) {
		found = true
		p := Problem{Path: path, Offset: d.Offset, Blob: blobNo(f.Name), Entry: d.Entry, Layer: -1, First: d.First, Rows: d.Rows, Error: d.Err.Error()}
		if d.Layer >= 0 {
			p.Layer = m.Layers[d.Layer]
		}
		if d.Entry >= 0 {
			e := r.Entry(d.Entry)
			p.Sample = fmt.Sprintf("%s %d", m.Datasets[e.Dataset], e.Sample)
		}
		v.report(p)
	})
	if err != nil {
		return err
	}
	if found {
		return nil
	}
	if hash != f.Hash {
		v.problem(f.Name, fmt.Errorf("is a sound blob, but not the one that was committed: hash %s, want %s", hash, f.Hash))
	} else if v.o.Sound != nil {
		if err := v.o.Sound(r); err != nil {
			v.problem(f.Name, err)
		}
	}
	return nil
}

// pace holds the rate down to what was asked for.
func (v *verifier) pace(n int64) error {
	v.read += n
	if v.o.Rate <= 0 {
		return v.ctx.Err()
	}
	due := v.began.Add(time.Duration(float64(v.read) / float64(v.o.Rate) * float64(time.Second)))
	select {
	case <-v.ctx.Done():
		return v.ctx.Err()
	case <-time.After(time.Until(due)):
		return nil
	}
}

// extra reports files that the generation should not have.
func (v *verifier) extra(known map[string]bool) error {
	ents, err := os.ReadDir(v.dir)
	if errors.Is(err, fs.ErrNotExist) {
		v.problem("", errors.New("the directory is missing"))
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range ents {
		if !known[e.Name()] && (v.o.Owned == nil || !v.o.Owned(e.Name())) {
			v.report(Problem{Path: filepath.Join(v.dir, e.Name()), Offset: -1, Blob: -1, Entry: -1, Layer: -1,
				Error: "is not part of the generation", Hint: "move " + filepath.Join(v.dir, e.Name()) + " away"})
		}
	}
	return nil
}

// blobNo is the number in a blob's file name, -1 for other files.
func blobNo(name string) int {
	s, ok := strings.CutPrefix(name, "blob-")
	s, ok2 := strings.CutSuffix(s, ".ebb")
	if !ok || !ok2 {
		return -1
	}
	n := 0
	for _, c := range s {
		if c < '0' || c > '9' || n > 1<<30 {
			return -1
		}
		n = 10*n + int(c-'0')
	}
	return n
}
