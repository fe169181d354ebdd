package exporter

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"eaglebatch/extract/export/jsonl"
	"eaglebatch/internal/compress"
	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
)

// ErrExists marks an export that would replace a file of other content.
var ErrExists = errors.New("exists with other content")

// JSONLOptions says what JSONL writes.
type JSONLOptions struct {
	// File is the file of the only split; "": a file a split in Dir, named
	// after it.
	File, Dir   string
	Split       string          // train or eval; "": in Dir each that has samples, in File train
	Compression compress.Format // "": plain
	Segments    bool
	Force       bool  // replace files of other content
	Memory      int64 // for samples read ahead; 0: 64 MiB
}

// readers is how many samples are read at once: random reads of Badger wait
// for the disk.
const readers = 12

// lineCost bounds the bytes that a token takes while its line is made: id and
// mask in memory, ten digits and a comma, mask digit and a comma.
const lineCost = 5 + 11 + 2

// Split is a written file.
type Split struct {
	Split      string `json:"split"`
	Path       string `json:"path"`
	Samples    int64  `json:"samples"`
	Tokens     int64  `json:"tokens"`
	LossTokens int64  `json:"loss_tokens"`
	Bytes      int64  `json:"bytes"` // of the file
	SHA256     string `json:"sha256"`
	Unchanged  bool   `json:"unchanged"` // it was there already
}

// Dataset is what an export took of a dataset.
type Dataset struct {
	Name       string `json:"name"`
	Accepted   int64  `json:"accepted"`   // merged samples
	Duplicates int64  `json:"duplicates"` // lines left out when merging, equal to earlier ones
	Samples    int64  `json:"samples"`    // positions written
	Tokens     int64  `json:"tokens"`
	LossTokens int64  `json:"loss_tokens"`
}

// JSONLReport is what was written, and what was not.
type JSONLReport struct {
	Plan       uint32    `json:"plan"`  // 0: there is none, the shuffled order is written in full length
	Order      uint32    `json:"order"` // of the shuffle
	MaxTokens  int64     `json:"max_tokens"`
	Duplicates int64     `json:"duplicates"` // over all datasets
	Repeated   int64     `json:"repeated"`   // positions planned that repeat a sample
	Dropped    int64     `json:"dropped"`    // positions that the plan leaves out
	OverLength int64     `json:"over_length"`
	Emptied    int64     `json:"emptied"`
	Splits     []Split   `json:"splits"`
	Datasets   []Dataset `json:"datasets"`
}

// JSONL writes the merged, shuffled and planned samples of ws as JSON lines.
func JSONL(ctx context.Context, ws *store.Workspace, o JSONLOptions, rep progress.Reporter) (_ JSONLReport, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := openPositions(ws, func(err error) { cancel(err) })
	if err != nil {
		return JSONLReport{}, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	out := p.report()
	splits, err := p.wanted(o)
	if err != nil {
		return out, err
	}
	var total int64
	for _, s := range splits {
		total += s.Count
	}
	rep.Start(progress.Phase{Name: "export", Unit: "samples", Total: total})
	defer rep.Finish()
	for _, s := range splits {
		x := &stream{p: p, o: o, split: s, rep: rep, report: &out}
		w, err := x.file(ctx)
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
			err = cause // what cannot be read cancels whoever waits
		}
		if err != nil {
			return out, err
		}
		out.Splits = append(out.Splits, w)
	}
	return out, nil
}

func (p *positions) report() JSONLReport {
	out := JSONLReport{Order: p.order.ID}
	if p.plan != nil {
		out.Plan, out.MaxTokens, out.Repeated = p.plan.ID, p.plan.MaxTokens, p.plan.Repeated
		out.Dropped, out.OverLength, out.Emptied = p.plan.Dropped, p.plan.OverLength, p.plan.Emptied
	}
	for _, d := range p.sets {
		out.Duplicates += d.Duplicates
		out.Datasets = append(out.Datasets, Dataset{Name: d.Name, Accepted: d.Accepted, Duplicates: d.Duplicates})
	}
	return out
}

// wanted picks the splits to write.
func (p *positions) wanted(o JSONLOptions) ([]genindex.Split, error) {
	name := o.Split
	if o.File != "" && name == "" {
		name = "train"
	}
	var out []genindex.Split
	for _, s := range p.splits {
		if s.Count > 0 && (name == "" || s.Name == name) {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there are no samples in split %q", name)
	}
	return out, nil
}

// stream writes one split.
type stream struct {
	p      *positions
	o      JSONLOptions
	split  genindex.Split
	rep    progress.Reporter
	report *JSONLReport
	sum    Split
}

func (x *stream) path() string {
	if x.o.File != "" {
		return x.o.File
	}
	ext := map[compress.Format]string{compress.Gzip: ".gz", compress.Zstd: ".zst", compress.LZ4: ".lz4"}[x.o.Compression]
	return filepath.Join(x.o.Dir, x.split.Name+".jsonl"+ext)
}

// file writes the split under a temporary name and puts it in place.
func (x *stream) file(ctx context.Context) (Split, error) {
	fs, path := x.p.ws.FS(), x.path()
	x.sum = Split{Split: x.split.Name, Path: path}
	if err := fs.MkdirAll(filepath.Dir(path)); err != nil {
		return x.sum, err
	}
	f, err := fs.Create(path + fsx.TempSuffix)
	if err != nil {
		return x.sum, err
	}
	buf := bufio.NewWriterSize(f, 1<<18)
	sum := &counter{w: buf, sum: sha256.New()}
	if err := errors.Join(x.encode(ctx, sum), buf.Flush()); err != nil {
		return x.sum, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close(), fs.Remove(f.Name()))
	}
	x.sum.Bytes, x.sum.SHA256 = sum.n, hex.EncodeToString(sum.sum.Sum(nil))
	had, there, err := hashFile(ctx, path)
	switch {
	case err != nil:
	case there && had == x.sum.SHA256:
		x.sum.Unchanged = true
	case there && !x.o.Force:
		err = fmt.Errorf("%s: %w", path, ErrExists)
	default:
		return x.sum, publish(fs, f, path)
	}
	return x.sum, errors.Join(err, f.Close(), fs.Remove(f.Name()))
}

// publish puts a complete file in place.
func publish(fs *fsx.FS, f *fsx.File, path string) error {
	if err := fs.Point(fault.ExportBeforeRename); err != nil {
		return errors.Join(err, f.Close(), fs.Remove(f.Name()))
	}
	if err := fs.Publish(f, path); err != nil {
		if rerr := fs.Remove(f.Name()); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	return fs.Point(fault.ExportAfterRename)
}

// line is an encoded row.
type line struct {
	text         []byte
	set          int
	tokens, loss int64
}

func (x *stream) encode(ctx context.Context, w io.Writer) error {
	z, err := compress.NewWriter(w, cmp.Or(x.o.Compression, compress.Plain))
	if err != nil {
		return err
	}
	memory := x.o.Memory
	if memory == 0 {
		memory = 64 << 20
	}
	err = inOrder(ctx, work[line]{
		n: x.split.Count, readers: readers, budget: memory,
		cost: func(i int64) int64 { return lineCost*x.p.tokens(x.split.First+i) + 512 },
		do:   func(ctx context.Context, i int64) (line, error) { return x.line(ctx, x.split.First+i) },
		emit: func(_ int64, l line) error {
			x.count(l)
			_, err := z.Write(l.text)
			return err
		},
	})
	return errors.Join(err, z.Close())
}

func (x *stream) line(ctx context.Context, i int64) (line, error) {
	at, err := x.p.at(i)
	if err != nil {
		return line{}, err
	}
	r, err := x.p.get(ctx, i)
	if err != nil {
		return line{}, err
	}
	l := line{set: at.set, tokens: int64(len(r.IDs))}
	for _, m := range r.Mask {
		l.loss += int64(m)
	}
	l.text, err = jsonl.Append(make([]byte, 0, 8*len(r.IDs)+256), r, jsonl.Options{Segments: x.o.Segments})
	return l, err
}

func (x *stream) count(l line) {
	x.sum.Samples++
	x.sum.Tokens += l.tokens
	x.sum.LossTokens += l.loss
	d := &x.report.Datasets[l.set]
	d.Samples++
	d.Tokens += l.tokens
	d.LossTokens += l.loss
	x.rep.Add(progress.Delta{Units: 1, Tokens: l.tokens, Bytes: int64(len(l.text))})
}

// hashFile returns the hex sha256 of a file; there is false where there is none.
func hashFile(ctx context.Context, path string) (sum string, there bool, err error) {
	f, err := fsx.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), true, nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return "", true, err
		}
	}
}
