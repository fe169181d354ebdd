package blob

import (
	"context"
	"errors"
	"hash/crc32"
	"io"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/internal/fsx"
)

// Damage is one damaged place.
type Damage struct {
	Path        string
	Offset      int64
	Bytes       int64 // of the file
	Entry       int   // -1: header, footer, trailer or the file as a whole
	Layer       int   // index into Meta.Layers; -1: ids, mask or row map
	First, Rows int   // tokens of the entry that are hit
	Err         error
}

// Verify reads the file once from end to end, decodes and hashes every chunk and
// reports each damaged one; it goes on after damage. It returns the bytes read.
// The error is for what keeps it from looking: ctx.
func (r *Reader) Verify(ctx context.Context, damaged func(Damage)) (int64, error) {
	_, n, err := r.VerifyPaced(ctx, func(int64) error { return nil }, damaged)
	return n, err
}

// VerifyPaced is Verify that calls wait with the bytes of every piece that was
// read, whose error ends it. It also returns the hash of the file, as HashFile
// gives it; where damage was reported it may be of no use.
func (r *Reader) VerifyPaced(ctx context.Context, wait func(int64) error, damaged func(Damage)) (hash string, n int64, err error) {
	v := verifier{Reader: r, whole: xxhash.New(), wait: wait, report: func(d Damage) {
		d.Path = r.path
		damaged(d)
	}}
	v.section(0, r.data)
	for i := range r.entries {
		if err := v.entry(ctx, i); err != nil {
			return "", v.read, err
		}
	}
	v.section(int64(r.end.footer), int64(r.end.length))
	sum := v.whole.Sum64()
	v.section(r.size-trailerBytes, trailerBytes)
	if !v.found && sum != r.end.hash {
		// Every value is right, but not every bit is what was written.
		v.add(Damage{Bytes: r.size, Entry: -1, Layer: -1, Err: errors.New("hash of the whole file does not match")})
	}
	return hashText(v.whole.Sum64()), v.read, nil
}

type verifier struct {
	*Reader
	whole  *xxhash.Digest
	wait   func(int64) error
	report func(Damage)
	found  bool
	read   int64
	s      scratch
}

func (v *verifier) add(d Damage) {
	v.found = true
	v.report(d)
}

// section hashes bytes that Open has checked, as they are now.
func (v *verifier) section(off, n int64) {
	k, err := io.Copy(v.whole, io.NewSectionReader(v.src, off, n))
	v.read += k
	if err == nil && k < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		v.add(Damage{Offset: off, Bytes: n, Entry: -1, Layer: -1, Err: err})
	}
}

func (v *verifier) entry(ctx context.Context, i int) error {
	e := &v.entries[i]
	for k := range int(e.chunks) {
		if err := ctx.Err(); err != nil {
			return err
		}
		chunk := int(e.first) + k
		c := &v.chunks[chunk]
		v.s.raw = grow(v.s.raw, int(c.raw))
		enc, err := v.decodeWith(&v.s, v.s.raw, chunk)
		_, _ = v.whole.Write(enc) // never fails
		v.read += int64(len(enc))
		if werr := v.wait(int64(len(enc))); werr != nil {
			return werr
		}
		if err == nil && crc32.ChecksumIEEE(v.s.raw) != c.crc {
			err = errChecksum
		}
		layer, block := v.lay.at(e, k)
		if err == nil && block == lossChunk {
			_, err = v.parseLosses(e, v.s.raw)
		} else if err == nil && layer < 0 && block > 0 && c.raw > 0 {
			err = v.checkBits(i, block)
		}
		if err == nil {
			continue
		}
		d := Damage{Offset: c.off, Bytes: int64(c.enc), Entry: i, Layer: layer, Rows: int(e.Rows), Err: err}
		if layer >= 0 {
			from, to := v.lay.block(e.Rows, block)
			d.First, d.Rows = from, to-from
		}
		v.add(d)
	}
	return nil
}

// checkBits checks the bit field just decoded: unused bits, and row maps
// against the chunks that they describe.
func (v *verifier) checkBits(i, k int) error {
	e := &v.entries[i]
	if !bitmap(v.s.raw).clean(int(e.Rows)) {
		return errReserved
	}
	if k < 2 {
		return nil
	}
	for b := range v.lay.blocks(e.Rows) {
		from, to := v.lay.block(e.Rows, b)
		if bitmap(v.s.raw).onesIn(from, to) != v.stored(e, k-2, b) {
			return errors.New("row map does not fit the rows stored")
		}
	}
	return nil
}

// VerifyFile is Verify for a file that may not open: it then reports what keeps
// it from opening. A *NewerError, and what keeps the file from being read at
// all, is an error.
func VerifyFile(ctx context.Context, path string, damaged func(Damage)) (int64, error) {
	r, err := Open(path)
	var c *CorruptError
	if errors.As(err, &c) {
		damaged(Damage{Path: path, Offset: max(0, c.Offset), Entry: -1, Layer: -1, Err: err})
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := r.Verify(ctx, damaged)
	return n, errors.Join(err, r.Close())
}

// HashFile returns the xxh64 of a file, as Info.Hash has it.
func HashFile(ctx context.Context, path string) (string, error) {
	f, err := fsx.Open(path)
	if err != nil {
		return "", err
	}
	h, buf := xxhash.New(), make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", closeAfter(err, f)
		}
		n, err := f.Read(buf)
		_, _ = h.Write(buf[:n]) // never fails
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", closeAfter(err, f)
		}
	}
	return hashText(h.Sum64()), f.Close()
}

var _ io.Closer = (*Reader)(nil)
