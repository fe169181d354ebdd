package blob

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/internal/fsx"
)

// maxReason bounds what is kept of the reason of an absent entry.
const maxReason = 4096

// Writer writes one blob. Entries are written one after the other, in physical
// order; rows of an entry may come in pieces. Encoding runs on Threads
// goroutines behind it, in bounded memory, and does not change the bytes. An
// error of encoding or writing is returned by the next call and by all after
// it. A Writer belongs to one goroutine, which ends it with Commit or Abort.
type Writer struct {
	fs   *fsx.FS
	path string
	tmp  string
	f    *fsx.File // nil once closed
	bw   *bufio.Writer
	hash *xxhash.Digest
	size int64 // bytes given to bw
	page pageCache
	meta Meta
	lay  layout
	sel  struct{ supervised, tail bool }
	row  int // bytes of a layer's row as it is given
	pipe *pipeline

	losses []Loss // of the entry whose chunks the sink gets

	chunks  []chunkRec // by the sink, in order; read after the pipeline stopped
	entries []entryRec
	next    int // chunks submitted
	footer  int // bytes it will have
	cur     *open
	info    Info
	err     error
	closed  bool
}

// open is the entry begun.
type open struct {
	rows   int // to come in all
	have   int
	keep   selected
	blocks []*job // of the block being filled, one a layer
}

// WriterOptions bounds a writer.
type WriterOptions struct {
	FS      *fsx.FS
	Threads int // encoders; 0: all cores
	// Tag becomes part of the temporary name, so that two writers may work on
	// the same path until one of them commits.
	Tag string
	// Room is asked before bytes go to the file; nil: nobody is.
	Room Room
}

// Room decides whether there is room for bytes in their final form, and learns
// when they have been written. Its error ends the writer. Several goroutines may
// call it.
type Room interface {
	Take(n int64) error
	Wrote(n int64)
}

// gated is a file whose bytes Room is asked for.
type gated struct {
	f    *fsx.File
	room Room
}

func (g gated) Write(b []byte) (int, error) {
	n := int64(len(b))
	if err := g.room.Take(n); err != nil {
		return 0, err
	}
	defer g.room.Wrote(n)
	return g.f.Write(b)
}

// WriterMemory is the most that a Writer of m keeps of states, in bytes, whatever
// it writes: raw and encoded form of each chunk under way, and the rows that it
// was given where they are others.
func WriterMemory(m Meta, threads int) int64 {
	if m.ChunkBytes == 0 {
		m.ChunkBytes = DefaultChunkBytes
	}
	rows := 2 * m.RowBytes()
	if m.Source != "" {
		rows += m.GivenRowBytes()
	}
	return int64(jobs(m, threads)) * int64(m.blockRows()*rows)
}

// jobs is how many chunks may be under way: a block being filled, one waiting,
// and two for each encoder.
func jobs(m Meta, threads int) int { return 2*len(m.Layers) + 2*encoderCount(threads) + 2 }

func encoderCount(threads int) int {
	if threads <= 0 {
		return runtime.GOMAXPROCS(0)
	}
	return threads
}

// Create begins path, under a temporary name until Commit. What an earlier crash
// left under that name is overwritten.
func Create(path string, m Meta, o WriterOptions) (*Writer, error) {
	m = m.clone()
	if m.ChunkBytes == 0 {
		m.ChunkBytes = DefaultChunkBytes
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("blob %s: %w", path, err)
	}
	js, err := json.Marshal(m)
	if err == nil && len(js) > maxJSON {
		err = fmt.Errorf("header of %d bytes, at most %d", len(js), maxJSON)
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", path, err)
	}
	encs := make([]encoders, encoderCount(o.Threads))
	for i := range encs {
		if encs[i], err = newEncoders(m); err != nil {
			return nil, fmt.Errorf("blob %s: %w", path, err)
		}
	}
	w := &Writer{fs: o.FS, path: path, meta: m, lay: newLayout(m), row: m.GivenRowBytes(), hash: xxhash.New()}
	if w.sel.supervised, w.sel.tail, err = parseSelection(m.Rows); err != nil {
		return nil, err
	}
	w.tmp = path + fsx.TempSuffix
	if o.Tag != "" {
		w.tmp = path + "." + o.Tag + fsx.TempSuffix
	}
	if w.f, err = o.FS.Create(w.tmp); err != nil {
		return nil, fmt.Errorf("blob %s: %w", path, err)
	}
	var to io.Writer = w.f
	if o.Room != nil {
		to = gated{w.f, o.Room}
	}
	w.bw = bufio.NewWriterSize(to, 64<<10)
	w.write(AppendHead(nil, magicHead, js))
	w.pipe = startPipeline(encs, jobs(m, o.Threads), w.sink)
	return w, nil
}

// write appends to the file and its hash; an error stays in bw until it is
// asked for.
func (w *Writer) write(b []byte) {
	_, _ = w.hash.Write(b) // never fails
	w.size += int64(len(b))
	_, _ = w.bw.Write(b) // sticky: Flush returns it
}

// sink runs on the pipeline's goroutine, chunk by chunk in order.
func (w *Writer) sink(j *job) error {
	if err := w.count(j); err != nil {
		return err
	}
	j.rec.off = w.size
	w.chunks = append(w.chunks, j.rec)
	_, _ = w.hash.Write(j.out)
	w.size += int64(len(j.out))
	if _, err := w.bw.Write(j.out); err != nil {
		return err
	}
	return w.page.wrote(w.f.OS(), w.size-int64(w.bw.Buffered()))
}

// fail makes err the answer to every later call.
func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = fmt.Errorf("blob %s: %w", w.path, err)
	}
	return w.err
}

// ready returns what keeps the writer from going on.
func (w *Writer) ready(call string, inEntry bool) error {
	switch {
	case w.err != nil:
		return w.err
	case w.closed:
		return fmt.Errorf("blob %s: %s after Commit or Abort", w.path, call)
	case inEntry && w.cur == nil:
		return w.fail(fmt.Errorf("%s without Begin", call))
	case !inEntry && w.cur != nil:
		return w.fail(fmt.Errorf("%s before End of the entry begun", call))
	}
	if err := w.pipe.failed(); err != nil {
		return w.fail(err)
	}
	return nil
}

// add checks an entry and the room for it in the footer.
func (w *Writer) add(e entryRec) error {
	if int(e.Dataset) >= len(w.meta.Datasets) {
		return w.fail(fmt.Errorf("entry %d: dataset %d of %d", len(w.entries), e.Dataset, len(w.meta.Datasets)))
	}
	if e.Rows < 1 || e.Rows > maxRows {
		return w.fail(fmt.Errorf("entry %d: %d rows, want 1 to %d", len(w.entries), e.Rows, maxRows))
	}
	size := w.footer + entryBytes + int(e.chunks)*chunkBytes + len(e.reason)
	if size > maxFooter {
		return w.fail(fmt.Errorf("entry %d: footer would pass %d bytes: fewer entries or larger chunks", len(w.entries), maxFooter))
	}
	w.footer = size
	e.first = uint32(w.next)
	w.next += int(e.chunks)
	w.entries = append(w.entries, e)
	return nil
}

// Begin starts the next entry with its token ids and mask (one byte a token, 0
// or 1).
func (w *Writer) Begin(e Entry, ids []uint32, mask []byte) error {
	if err := w.ready("Begin", false); err != nil {
		return err
	}
	if len(ids) != int(e.Rows) || len(mask) != int(e.Rows) {
		return w.fail(fmt.Errorf("entry %d: %d ids and %d mask bytes for %d rows", len(w.entries), len(ids), len(mask), e.Rows))
	}
	bits := newBitmap(len(mask))
	for t, v := range mask {
		if v > 1 {
			return w.fail(fmt.Errorf("entry %d: mask[%d] is %d", len(w.entries), t, v))
		}
		bits[t>>3] |= v << (t & 7)
	}
	rec := entryRec{Entry: e}
	keep := selection(mask, w.sel.supervised, w.sel.tail)
	if keep.last != nil || keep.others != nil && w.lay.layers > 1 {
		rec.flags = flagSelected
	}
	if w.meta.Source != "" {
		rec.flags |= flagLosses
	}
	rec.chunks = uint32(w.lay.count(rec.flags, e.Rows))
	if err := w.add(rec); err != nil {
		return err
	}
	w.cur = &open{rows: len(ids), keep: keep, blocks: make([]*job, w.lay.layers)}
	raw := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	w.putAux(raw)
	w.putAux(bits)
	if rec.flags&flagSelected != 0 {
		for l := range w.lay.layers {
			w.putAux(keep.layer(l, w.lay.layers))
		}
	}
	w.info.Tokens += int64(e.Rows)
	return w.err
}

func (w *Writer) putAux(raw []byte) {
	j, err := w.pipe.get(context.Background(), len(raw))
	if err != nil {
		_ = w.fail(err)
		return
	}
	j.raw, j.kind = append(j.raw, raw...), ofAux
	w.pipe.put(j)
}

// Rows appends rows of the entry begun: row-major [n, layers, hidden] in
// Meta.GivenDType. data may be reused once Rows returns. When ctx ends it, the blob
// can only be aborted.
func (w *Writer) Rows(ctx context.Context, data []byte, n int) error {
	if err := w.ready("Rows", true); err != nil {
		return err
	}
	step := w.lay.layers * w.row
	if n < 0 || len(data) != n*step {
		return w.fail(fmt.Errorf("entry %d: %d bytes for %d rows of %d", len(w.entries)-1, len(data), n, step))
	}
	c := w.cur
	if c.have+n > c.rows {
		return w.fail(fmt.Errorf("entry %d: %d rows, want %d", len(w.entries)-1, c.have+n, c.rows))
	}
	for n > 0 {
		block := c.have / w.lay.blockRows
		from, to := w.lay.block(uint32(c.rows), block)
		if c.have == from {
			if err := w.openBlock(ctx, from, to); err != nil {
				return w.fail(err)
			}
		}
		k := min(n, to-c.have)
		for l, j := range c.blocks {
			to := &j.raw
			if w.meta.Source != "" {
				to = &j.given
			}
			*to = w.gather(*to, data[l*w.row:], c.keep.layer(l, w.lay.layers), c.have, k)
		}
		data, n, c.have = data[k*step:], n-k, c.have+k
		if c.have == to {
			w.putBlock()
		}
	}
	return nil
}

// openBlock takes a job for each layer of the block of rows [from, to).
func (w *Writer) openBlock(ctx context.Context, from, to int) error {
	for l := range w.cur.blocks {
		rows := to - from
		if keep := w.cur.keep.layer(l, w.lay.layers); keep != nil {
			rows = keep.onesIn(from, to)
		}
		j, err := w.pipe.get(ctx, rows*w.lay.rowBytes)
		if err != nil {
			return err
		}
		if w.meta.Source != "" {
			j.given = slices.Grow(j.given, rows*w.row)
		}
		j.layer = l
		w.cur.blocks[l] = j
	}
	return nil
}

// putBlock submits the block's chunks, in the order of layers.
func (w *Writer) putBlock() {
	for l, j := range w.cur.blocks {
		w.info.RawBytes += int64((len(j.raw) + len(j.given)) / w.row * w.lay.rowBytes)
		w.pipe.put(j)
		w.cur.blocks[l] = nil
	}
}

// gather appends one layer's part of rows [first, first+n) to dst; src begins at
// that part of the first row.
func (w *Writer) gather(dst, src []byte, keep bitmap, first, n int) []byte {
	rb, step := w.row, w.lay.layers*w.row
	for r := range n {
		if keep == nil || keep.has(first+r) {
			dst = append(dst, src[r*step:][:rb]...)
		}
	}
	return dst
}

// End closes the entry begun; all its rows must have come.
func (w *Writer) End() error {
	if err := w.ready("End", true); err != nil {
		return err
	}
	if w.cur.have != w.cur.rows {
		return w.fail(fmt.Errorf("entry %d: End after %d of %d rows", len(w.entries)-1, w.cur.have, w.cur.rows))
	}
	w.cur = nil
	if w.meta.Source != "" {
		w.putLosses()
	}
	return w.err
}

// Skip records the next entry as absent (quarantined), with a reason, of which
// the first 4096 bytes are kept.
func (w *Writer) Skip(e Entry, reason string) error {
	if err := w.ready("Skip", false); err != nil {
		return err
	}
	if reason == "" {
		return w.fail(errors.New("Skip without a reason"))
	}
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason-3], "") + "…"
	}
	w.info.Absent++
	return w.add(entryRec{Entry: e, flags: flagAbsent, reason: reason})
}
