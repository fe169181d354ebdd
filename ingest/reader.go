package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"eaglebatch/internal/compress"
	"eaglebatch/store"
)

// position is a place between two lines of a dataset's files.
type position struct {
	File   int    `json:"file"`
	Offset int64  `json:"offset"` // in the uncompressed file
	Line   int64  `json:"line"`   // lines before it in the file
	State  []byte `json:"state"`  // hash of a plain file up to Offset
}

// reader cuts the files of a dataset into blocks of whole lines.
type reader struct {
	files []store.SourceFile
	block int // bytes of text a block is to have
	take  func() *block
	// emit passes a filled block on; false: stop.
	emit func(*block) bool

	f     *os.File
	in    io.Reader // uncompressed
	hash  hash.Hash // of the bytes on disk
	plain bool
	raw   *counter
	carry []byte // the beginning of a line that the last block ended before
	off   int64
}

// counter counts and hashes the bytes of a compressed file as they are read.
type counter struct {
	r io.Reader
	h io.Writer // nil: not hashed here
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.h != nil {
		c.h.Write(p[:n])
	}
	return n, err
}

// run emits the blocks from position p to the end of the last file.
func (r *reader) run(ctx context.Context, p position) error {
	for i := p.File; i < len(r.files); i++ {
		if err := r.file(ctx, i, p); err != nil {
			return err
		}
		p = position{}
	}
	return nil
}

func (r *reader) file(ctx context.Context, i int, p position) (err error) {
	path := r.files[i].Path
	defer func() {
		if r.f != nil {
			err = errors.Join(err, r.f.Close())
			r.f = nil
		}
	}()
	stream, err := r.open(r.files[i], p)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer stream.Close()
	r.carry, r.off = r.carry[:0], p.Offset
	for last := false; !last; {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := r.take()
		b.file, b.offset = i, r.off
		last, err = r.fill(b)
		if err == nil && last {
			err = r.finish(b, r.files[i])
		}
		if err != nil {
			return fmt.Errorf("%s: behind offset %d: %w", path, r.off, err)
		}
		r.off += b.size
		if !r.emit(b) {
			return ctx.Err()
		}
	}
	return nil
}

// open positions r in the file at p. A plain file is entered in the middle,
// with the hash of what lies before; a compressed one is read from its
// beginning.
func (r *reader) open(f store.SourceFile, p position) (*compress.Reader, error) {
	if err := checkUnchanged(f); err != nil {
		return nil, err
	}
	var err error
	if r.f, err = os.Open(f.Path); err != nil {
		return nil, err
	}
	r.hash = sha256.New()
	r.raw = &counter{r: r.f, h: r.hash}
	stream, err := compress.NewReader(r.raw)
	if err != nil {
		return nil, err
	}
	r.in, r.plain = stream, stream.Format == compress.Plain
	if !r.plain {
		if _, err := io.CopyN(io.Discard, r.in, p.Offset); err != nil {
			return nil, fmt.Errorf("offset %d, where merging stopped, is not there: %w", p.Offset, err)
		}
		return stream, nil
	}
	if _, err := r.f.Seek(p.Offset, io.SeekStart); err != nil {
		return nil, err
	}
	r.in, r.raw.h = r.f, nil
	r.hash = sha256.New()
	if len(p.State) > 0 {
		if err := r.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(p.State); err != nil {
			return nil, fmt.Errorf("hash state of the cursor: %w", err)
		}
	}
	return stream, nil
}

func checkUnchanged(f store.SourceFile) error {
	now, err := statSource(f.Path)
	if err != nil {
		return err
	}
	if now.size != f.Size || now.mtime != f.ModTime {
		return fmt.Errorf("changed while it was being merged: it had %d bytes, now %d, or was written again; put it back, or start anew with run --redo merge", f.Size, now.size)
	}
	return nil
}

// fill reads whole lines into b; last says that the file ends with them.
func (r *reader) fill(b *block) (last bool, err error) {
	b.text = append(b.text[:0], r.carry...)
	r.carry = r.carry[:0]
	searched := 0
	for want := r.block; ; want = min(2*len(b.text), MaxLine+1) {
		if last, err = r.more(b, max(want, len(b.text))); err != nil {
			return false, err
		}
		i := bytes.LastIndexByte(b.text[searched:], '\n')
		if i < 0 && len(b.text) > MaxLine {
			if last, err = r.discard(b); err != nil {
				return false, err
			}
			break
		}
		if last {
			break
		}
		if i >= 0 {
			cut := searched + i + 1
			r.carry = append(r.carry, b.text[cut:]...)
			b.text = b.text[:cut]
			break
		}
		searched = len(b.text)
	}
	if !b.overlong {
		b.size = int64(len(b.text))
		r.sum(b.text)
	}
	return last, r.mark(b)
}

// more reads until b has n bytes of text or the file ends.
func (r *reader) more(b *block, n int) (last bool, err error) {
	if cap(b.text) < n+pad {
		b.text = append(make([]byte, 0, n+pad), b.text...)
	}
	k, err := io.ReadFull(r.in, b.text[len(b.text):n])
	b.text = b.text[:len(b.text)+k]
	// Only the end of the file comes as these very values: a decoder's errors
	// are wrapped.
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return true, nil
	}
	return false, err
}

// discard steps over the rest of a line that is too long: b keeps its
// beginning and stands for all of it.
func (r *reader) discard(b *block) (last bool, err error) {
	b.overlong, b.size = true, int64(len(b.text))
	r.sum(b.text)
	b.text = b.text[:keptLine]
	buf := make([]byte, 1<<18)
	for {
		n, err := r.in.Read(buf)
		if i := bytes.IndexByte(buf[:n], '\n'); i >= 0 {
			r.sum(buf[:i+1])
			b.size += int64(i + 1)
			r.carry = append(r.carry, buf[i+1:n]...)
			return false, ignoreEOF(err)
		}
		r.sum(buf[:n])
		b.size += int64(n)
		if err != nil {
			return true, ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

func (r *reader) sum(p []byte) {
	if r.plain {
		r.hash.Write(p)
	}
}

// mark notes in b how far the file on disk has been read and hashed.
func (r *reader) mark(b *block) (err error) {
	b.raw = r.raw.n
	if r.plain {
		b.raw = r.off + b.size
		b.state, err = r.hash.(encoding.BinaryMarshaler).MarshalBinary()
	}
	return err
}

// finish checks that the file is still the one that was begun, and hashes
// what a decoder may have left behind the end of its stream.
func (r *reader) finish(b *block, f store.SourceFile) error {
	if !r.plain {
		if _, err := io.Copy(io.Discard, r.raw); err != nil {
			return err
		}
	}
	if err := checkUnchanged(f); err != nil {
		return err
	}
	b.last, b.raw, b.state = true, f.Size, nil
	b.hash = hex.EncodeToString(r.hash.Sum(nil))
	return nil
}
