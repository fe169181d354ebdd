package blob

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"eaglebatch/internal/fault"
)

// Info is what a finished blob is.
type Info struct {
	Bytes    int64  // size of the file
	RawBytes int64  // of the hidden states in it, before encoding
	Entries  int    // all, absent ones included
	Absent   int    // entries skipped
	Tokens   int64  // of entries that are there
	Hash     string // xxh64 of the whole file, hex
	Losses   []Loss // what quantizing cost, by layer; nil where nothing was quantized
}

// Commit writes footer and index, fsyncs, renames, fsyncs the directory. After
// an error the blob is not committed, unless the error came after the rename:
// then the complete file is in place.
func (w *Writer) Commit(ctx context.Context) (Info, error) {
	if err := w.ready("Commit", false); err != nil {
		return Info{}, err
	}
	if err := ctx.Err(); err != nil {
		return Info{}, err
	}
	w.closed = true
	if err := w.pipe.stop(); err != nil {
		return Info{}, w.fail(err)
	}
	w.writeEnd()
	if err := w.publish(); err != nil {
		return Info{}, w.fail(err)
	}
	w.info.Bytes, w.info.Entries = w.size, len(w.entries)
	w.info.Hash = hashText(w.hash.Sum64())
	return w.info, nil
}

// writeEnd appends footer and trailer.
func (w *Writer) writeEnd() {
	t := trailer{
		footer:  uint64(w.size),
		entries: uint32(len(w.entries)),
		chunks:  uint32(len(w.chunks)),
	}
	b := make([]byte, 0, w.footer)
	for i := range w.entries {
		b = w.entries[i].append(b)
	}
	for i := range w.chunks {
		b = w.chunks[i].append(b)
	}
	for i := range w.entries {
		b = append(b, w.entries[i].reason...)
		t.reasons += uint32(len(w.entries[i].reason))
	}
	t.length, t.crc = uint64(len(b)), crc32.ChecksumIEEE(b)
	w.write(b)
	t.hash = w.hash.Sum64()
	w.write(t.append(nil))
}

func (w *Writer) publish() error {
	if err := w.bw.Flush(); err != nil {
		return errors.Join(err, w.closeFile())
	}
	if err := w.fs.Point(fault.BlobBeforeSync); err != nil {
		return errors.Join(err, w.closeFile())
	}
	if err := w.f.Sync(); err != nil {
		return errors.Join(err, w.closeFile())
	}
	w.page.done(w.f.OS(), w.size)
	if err := w.closeFile(); err != nil {
		return err
	}
	if err := w.fs.Point(fault.BlobBeforeRename); err != nil {
		return err
	}
	if err := w.fs.Rename(w.tmp, w.path); err != nil {
		return err
	}
	w.tmp = ""
	return w.fs.Point(fault.BlobAfterRename)
}

func (w *Writer) closeFile() error {
	f := w.f
	w.f = nil
	return f.Close()
}

// Abort removes the unfinished file. After a Commit that succeeded it does
// nothing; after one that failed it removes what is left under the temporary
// name.
func (w *Writer) Abort() error {
	var errs []error
	if !w.closed {
		w.closed = true
		// Whatever failed behind the writer no longer matters: the file goes.
		_ = w.pipe.stop()
	}
	if w.f != nil {
		errs = append(errs, w.closeFile())
	}
	if w.tmp != "" {
		if err := w.fs.Remove(w.tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		w.tmp = ""
	}
	return errors.Join(errs...)
}

func hashText(h uint64) string { return fmt.Sprintf("%016x", h) }
