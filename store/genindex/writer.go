package genindex

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/blob"
)

// Writer writes an index file; memory use does not depend on its size. It
// belongs to one goroutine, which ends it with Finish or Abort. After an error
// every call returns that error.
type Writer struct {
	fs    *fsx.FS
	path  string
	meta  Meta
	main  *spool // header, entries; then all the rest
	pos   *spool
	blobs *spool
	masks *spool
	s     sections
	buf   []byte // a record
	bits  []byte // a mask
	sums  []byte // block checksums
	block uint32 // checksum of the block being filled
	fill  int
	err   error
	done  bool
}

// spool is a buffered file.
type spool struct {
	f  *fsx.File
	bw *bufio.Writer
}

func newSpool(fs *fsx.FS, path string) (*spool, error) {
	f, err := fs.Create(path)
	if err != nil {
		return nil, err
	}
	return &spool{f, bufio.NewWriterSize(f, 1<<18)}, nil
}

// Create begins path (written as a temporary file until Finish).
func Create(fs *fsx.FS, path string, m Meta) (*Writer, error) {
	m.Datasets, m.Splits = slices.Clone(m.Datasets), slices.Clone(m.Splits)
	w := &Writer{fs: fs, path: path, meta: m}
	for _, p := range []struct {
		to   **spool
		name string
	}{{&w.main, ""}, {&w.pos, ".positions"}, {&w.blobs, ".blobs"}, {&w.masks, ".masks"}} {
		var err error
		if *p.to, err = newSpool(fs, path+p.name+fsx.TempSuffix); err != nil {
			return nil, errors.Join(fmt.Errorf("index %s: %w", path, err), w.Abort())
		}
	}
	if err := errors.Join(w.write(blob.AppendHead(nil, magicHead, nil)), w.blobRow()); err != nil {
		return nil, errors.Join(w.fail(err), w.Abort())
	}
	return w, nil
}

// write appends to the data of the file and its block checksums.
func (w *Writer) write(b []byte) error {
	if _, err := w.main.bw.Write(b); err != nil {
		return err
	}
	for len(b) > 0 {
		k := min(len(b), blockBytes-w.fill)
		w.block = crc32.Update(w.block, crc32.IEEETable, b[:k])
		w.fill += k
		b = b[k:]
		if w.fill == blockBytes {
			w.endBlock()
		}
	}
	return nil
}

func (w *Writer) endBlock() {
	w.sums = binary.LittleEndian.AppendUint32(w.sums, w.block)
	w.block, w.fill = 0, 0
}

func (w *Writer) fail(err error) error {
	if w.err == nil {
		w.err = fmt.Errorf("index %s: %w", w.path, err)
	}
	return w.err
}

func (w *Writer) ready() error {
	if w.err == nil && w.done {
		return fmt.Errorf("index %s: used after Finish or Abort", w.path)
	}
	return w.err
}

// blobRow appends to the blob table: where the next blob's entries begin.
func (w *Writer) blobRow() error {
	w.buf = binary.LittleEndian.AppendUint64(w.buf[:0], w.s.entries)
	_, err := w.blobs.bw.Write(w.buf)
	return err
}

// Blob appends the entries of the next own blob, in physical order.
func (w *Writer) Blob(entries []blob.Entry) error {
	if err := w.ready(); err != nil {
		return err
	}
	for _, e := range entries {
		w.buf = appendEntry(w.buf[:0], e)
		if err := w.write(w.buf); err != nil {
			return w.fail(err)
		}
	}
	w.s.entries += uint64(len(entries))
	w.s.blobs++
	if err := w.blobRow(); err != nil {
		return w.fail(err)
	}
	return nil
}

// Position appends the next position. A mask, one byte a token, gives it a mask
// of its own; with nil it has its entry's. p.Mask is not looked at. Calls of Blob
// and Position may mix.
func (w *Writer) Position(p Position, mask []byte) error {
	if err := w.ready(); err != nil {
		return err
	}
	p.Mask = NoMask
	if mask != nil {
		if len(mask) != int(p.Rows) {
			return w.fail(fmt.Errorf("position %d: %d mask bytes for %d rows", w.s.positions, len(mask), p.Rows))
		}
		if err := w.mask(mask); err != nil {
			return w.fail(err)
		}
		p.Mask = w.s.masks
		w.s.masks += uint64(len(w.bits))
	}
	w.buf = appendPosition(w.buf[:0], p)
	if _, err := w.pos.bw.Write(w.buf); err != nil {
		return w.fail(err)
	}
	w.s.positions++
	return nil
}

// mask appends a mask as a bit field.
func (w *Writer) mask(mask []byte) error {
	w.bits = append(w.bits[:0], make([]byte, (len(mask)+7)/8)...)
	for t, v := range mask {
		if v > 1 {
			return fmt.Errorf("position %d: mask[%d] is %d", w.s.positions, t, v)
		}
		w.bits[t>>3] |= v << (t & 7)
	}
	_, err := w.masks.bw.Write(w.bits)
	return err
}

// Splits sets the splits, known only at the end.
func (w *Writer) Splits(s []Split) { w.meta.Splits = slices.Clone(s) }

// Finish checks the file as Open does and publishes it.
func (w *Writer) Finish() error {
	if err := w.ready(); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		return errors.Join(w.fail(err), w.Abort())
	}
	w.done = true
	return w.removeSpools()
}

func (w *Writer) finish() error {
	for _, s := range []*spool{w.pos, w.blobs, w.masks} {
		if err := w.take(s); err != nil {
			return err
		}
	}
	if w.fill > 0 {
		w.endBlock()
	}
	js, err := json.Marshal(w.meta)
	if err != nil {
		return err
	}
	if len(js) > maxMeta {
		return fmt.Errorf("meta of %d bytes, at most %d", len(js), maxMeta)
	}
	tail := append(js, w.sums...)
	w.s.meta, w.s.crc = uint32(len(js)), crc32.ChecksumIEEE(tail)
	if _, err := w.main.bw.Write(w.s.appendTrailer(tail)); err != nil {
		return err
	}
	if err := w.main.bw.Flush(); err != nil {
		return err
	}
	// What would not open must not get its name.
	f, err := Open(w.main.f.Name())
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	main := w.main
	w.main = nil
	if err := w.fs.Publish(main.f, w.path); err != nil {
		return errors.Join(err, removeIfThere(w.fs, main.f.Name()))
	}
	return nil
}

// take appends a spool to the data.
func (w *Writer) take(s *spool) error {
	if err := s.bw.Flush(); err != nil {
		return err
	}
	if _, err := s.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	buf := make([]byte, 1<<18)
	for {
		n, err := s.f.OS().Read(buf)
		if werr := w.write(buf[:n]); werr != nil {
			return werr
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *Writer) removeSpools() error {
	var errs []error
	for _, s := range []**spool{&w.main, &w.pos, &w.blobs, &w.masks} {
		if *s != nil {
			errs = append(errs, (*s).f.Close(), removeIfThere(w.fs, (*s).f.Name()))
			*s = nil
		}
	}
	return errors.Join(errs...)
}

func removeIfThere(f *fsx.FS, path string) error {
	if err := f.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Abort removes the temporary files. After Finish it does nothing.
func (w *Writer) Abort() error {
	w.done = true
	return w.removeSpools()
}
