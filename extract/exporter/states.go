package exporter

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/extract/export"
	"eaglebatch/extract/export/trainer"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
)

// StatesOptions says what States writes.
type StatesOptions struct {
	FS         *fsx.FS
	Generation string // directory of a sealed generation
	Layout     string // of trainer.Names
	Dir        string // new, or of the same export interrupted
	Split      string // "": train
	Synthetic  bool   // export made-up states too
	Writers    int    // files written at once; 0: one a core
}

// StatesReport is what was written.
type StatesReport struct {
	Layout     string `json:"layout"`
	Generation uint32 `json:"generation"`
	Split      string `json:"split"`
	Dir        string `json:"dir"`
	Samples    int64  `json:"samples"`
	Tokens     int64  `json:"tokens"`
	Bytes      int64  `json:"bytes"`   // of the samples' files
	Skipped    int64  `json:"skipped"` // files that an earlier, interrupted export had written
	LastNormed bool   `json:"last_normed"`
	Others     string `json:"other_splits,omitempty"` // that hold samples and were not asked for
}

// States writes the samples of a sealed generation with their hidden states, a
// file each, as a trainer's own tools lay them out, in the generation's order.
func States(ctx context.Context, o StatesOptions, rep progress.Reporter) (_ StatesReport, err error) {
	layout, ok := trainer.Named(o.Layout)
	if !ok {
		return StatesReport{}, fmt.Errorf("there is no layout %q, only %v", o.Layout, trainer.Names())
	}
	src, err := openSource(o)
	if err != nil {
		return StatesReport{}, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if err := layout.Check(src.target); err != nil {
		return StatesReport{}, fmt.Errorf("%s: %w", o.Generation, err)
	}
	x := &stateFiles{o: o, layout: layout, src: src, rep: rep, report: StatesReport{
		Layout: o.Layout, Generation: src.manifest.Generation, Split: src.split.Name, Dir: o.Dir,
		LastNormed: !src.target.Prenorm || src.target.Norm != nil && o.Layout != "speculators", Others: src.others,
	}}
	return x.report, x.export(ctx)
}

// stateFiles is an export on its way.
type stateFiles struct {
	o      StatesOptions
	layout trainer.Layout
	src    *source
	rep    progress.Reporter
	report StatesReport
	book   *book
}

func (x *stateFiles) export(ctx context.Context) (err error) {
	n := x.src.split.Count
	x.rep.Start(progress.Phase{Name: "export", Unit: "samples", Total: n})
	defer x.rep.Finish()
	if err := x.o.FS.MkdirAll(x.o.Dir); err != nil {
		return err
	}
	x.book, err = openBook(x.o.FS, x.o.Dir, x.identity())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.book.Close()) }()
	if err := x.room(); err != nil {
		return err
	}
	writers := cmp.Or(x.o.Writers, runtime.GOMAXPROCS(0))
	err = inOrder(ctx, work[entry]{
		n: n, readers: writers, budget: int64(4 * writers),
		cost: func(int64) int64 { return 1 },
		do:   x.file,
		emit: x.written,
	})
	if err != nil {
		return err
	}
	if x.o.Layout == "speculators" {
		if err := x.table(ctx); err != nil {
			return err
		}
	}
	return x.book.finish()
}

// identity is what must agree with what an interrupted export left.
func (x *stateFiles) identity() identity {
	t := x.src.target
	return identity{
		Layout: x.o.Layout, Generation: x.src.manifest.Generation, Manifest: x.src.hash, Split: x.src.split.Name, Samples: x.src.split.Count,
		DType: t.DType, Hidden: t.Hidden, Layers: t.Layers, LastNormed: x.report.LastNormed,
		Model: x.src.manifest.Meta.Model, Engine: x.src.manifest.Meta.Engine, Synthetic: x.src.manifest.Meta.Synthetic,
	}
}

// room refuses to begin what does not fit: the states raw, ids and masks.
func (x *stateFiles) room() error {
	t := x.src.target
	var need int64
	for i := range x.src.split.Count {
		if !x.book.has(i) {
			need += int64(x.src.position(i).Rows)*int64(len(t.Layers)*t.Hidden*elemBytes(t.DType)+16) + 4096
		}
	}
	sp, err := fsx.SpaceAt(x.o.Dir)
	if err != nil {
		return err
	}
	if need > sp.Free {
		return &store.SpaceError{Path: x.o.Dir, Need: need, Free: sp.Free}
	}
	return nil
}

// file writes the file of sample i, unless it is there.
func (x *stateFiles) file(ctx context.Context, i int64) (entry, error) {
	e := entry{I: i, Path: x.layout.Path(i)}
	path := filepath.Join(x.o.Dir, e.Path)
	if size, ok := x.book.look(i, path); ok {
		e.had, e.Bytes, e.tokens = true, size, int64(x.src.position(i).Rows)
		return e, nil
	}
	s, err := x.src.open(ctx, i)
	if err != nil {
		return e, err
	}
	defer s.Close()
	e.tokens = int64(len(s.IDs))
	if err := x.o.FS.MkdirAll(filepath.Dir(path)); err != nil {
		return e, err
	}
	f, err := x.o.FS.Create(path + fsx.TempSuffix)
	if err != nil {
		return e, err
	}
	buf := bufio.NewWriterSize(f, 1<<18)
	sum := &summed{w: buf, h: xxhash.New()}
	if err := errors.Join(x.layout.Write(sum, s.Sample), buf.Flush()); err != nil {
		return e, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close(), x.o.FS.Remove(f.Name()))
	}
	e.Bytes, e.Hash = sum.n, hex.EncodeToString(sum.h.Sum(nil))
	return e, publish(x.o.FS, f, path)
}

// written enters a file that is in place into the book.
func (x *stateFiles) written(_ int64, e entry) error {
	r := &x.report
	r.Samples, r.Tokens, r.Bytes = r.Samples+1, r.Tokens+e.tokens, r.Bytes+e.Bytes
	x.rep.Add(progress.Delta{Units: 1, Tokens: e.tokens, Bytes: e.Bytes})
	if e.had {
		r.Skipped++
		return nil
	}
	return x.book.add(e)
}

// summed counts and hashes what it passes on.
type summed struct {
	w io.Writer
	h *xxhash.Digest
	n int64
}

// Write implements io.Writer.
func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	s.h.Write(p[:n]) // never fails
	return n, err
}

// table writes ids and masks as the HF dataset that speculators reads beside
// the states.
func (x *stateFiles) table(ctx context.Context) error {
	dir := filepath.Join(x.o.Dir, "prep")
	if err := x.o.FS.MkdirAll(dir); err != nil {
		return err
	}
	var rows iter.Seq2[*export.Row, error] = func(yield func(*export.Row, error) bool) {
		for i := range x.src.split.Count {
			s, err := x.src.open(ctx, i)
			if err != nil {
				yield(nil, err)
				return
			}
			row := s.Row
			s.Close()
			if !yield(row, nil) {
				return
			}
		}
	}
	err := x.o.FS.WriteFileAtomic(filepath.Join(dir, trainer.TableData), func(w io.Writer) error {
		return trainer.WriteTable(w, rows)
	})
	if err != nil {
		return err
	}
	files, err := trainer.TableFiles(x.src.hash)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := x.o.FS.WriteFileAtomic(filepath.Join(dir, name), func(w io.Writer) error {
			_, err := w.Write(files[name])
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func elemBytes(dtype string) int {
	if dtype == "fp32" {
		return 4
	}
	return 2
}

// splitNamed finds a split and lists the others that hold samples.
func splitNamed(splits []genindex.Split, name string) (s genindex.Split, others string, err error) {
	found := false
	for _, sp := range splits {
		switch {
		case sp.Name == name:
			s, found = sp, true
		case sp.Count > 0:
			others += sp.Name + " "
		}
	}
	others = strings.TrimSpace(others)
	if !found || s.Count == 0 {
		return s, others, fmt.Errorf("there are no samples in split %q", name)
	}
	return s, others, nil
}
