package blob

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/internal/fsx"
	"eaglebatch/store/codec"
)

// Reader reads a blob at random; safe for concurrent use. Whoever opened it
// closes it, after the last call has returned. Entry and Absent panic for an
// entry that is out of range, as slices do; what reads from the file returns an
// error.
type Reader struct {
	path string
	src  io.ReaderAt
	file io.Closer
	size int64
	data int64 // where chunk 0 begins
	end  trailer
	meta Meta
	lay  layout
	*tables
	pool sync.Pool // *scratch
}

// scratch is what decoding a chunk needs.
type scratch struct {
	enc, raw []byte
	dec      *codec.Decoder
}

// Open reads header and footer index and checks them. It fails with
// *CorruptError for damage and *NewerError for a newer file.
func Open(path string) (*Reader, error) {
	f, err := fsx.Open(path)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: is not a regular file", path)
	}
	if err != nil {
		return nil, closeAfter(err, f)
	}
	r, err := newReader(path, f, st.Size())
	if err != nil {
		return nil, closeAfter(err, f)
	}
	r.file = f
	return r, nil
}

// closeAfter closes a file that was only read; err says all there is to say.
func closeAfter(err error, f io.Closer) error {
	_ = f.Close()
	return err
}

func newReader(path string, src io.ReaderAt, size int64) (*Reader, error) {
	js, err := ReadHead(path, src, size, magicHead)
	if err != nil {
		return nil, err
	}
	m, err := parseMeta(path, js)
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path, src: src, size: size, meta: m, lay: newLayout(m), data: headBytes + int64(len(js))}
	if r.end, err = r.readTrailer(); err != nil {
		return nil, &CorruptError{Path: path, Offset: max(0, size-trailerBytes), What: "trailer", Err: err}
	}
	b := make([]byte, r.end.length)
	err = readAt(src, b, int64(r.end.footer))
	if err == nil && crc32.ChecksumIEEE(b) != r.end.crc {
		err = errChecksum
	}
	if err == nil {
		r.tables, err = parseFooter(path, m, b, r.end, r.data)
	}
	if newer, ok := err.(*NewerError); ok {
		return nil, newer
	}
	if err != nil {
		return nil, &CorruptError{Path: path, Offset: int64(r.end.footer), What: "footer", Err: err}
	}
	return r, nil
}

func (r *Reader) readTrailer() (trailer, error) {
	if r.size < r.data+trailerBytes {
		return trailer{}, fmt.Errorf("no room for one in %d bytes: the file was cut", r.size)
	}
	var b [trailerBytes]byte
	if err := readAt(r.src, b[:], r.size-trailerBytes); err != nil {
		return trailer{}, err
	}
	return parseTrailer(b[:], r.size)
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// Meta returns the header.
func (r *Reader) Meta() Meta { return r.meta.clone() }

// Entries returns the number of entries, absent ones included.
func (r *Reader) Entries() int { return len(r.entries) }

// Entry describes entry i.
func (r *Reader) Entry(i int) Entry { return r.entries[i].Entry }

// Absent says whether entry i was skipped, and why.
func (r *Reader) Absent(i int) (reason string, absent bool) {
	e := &r.entries[i]
	return e.reason, e.flags&flagAbsent != 0
}

// present returns entry i, or an error where it has no chunks.
func (r *Reader) present(i int) (*entryRec, error) {
	if i < 0 || i >= len(r.entries) {
		return nil, fmt.Errorf("%s: entry %d of %d", r.path, i, len(r.entries))
	}
	e := &r.entries[i]
	if e.flags&flagAbsent != 0 {
		return nil, fmt.Errorf("%s: entry %d: %w: %s", r.path, i, ErrAbsent, e.reason)
	}
	return e, nil
}

// IDs returns the entry's token ids.
func (r *Reader) IDs(i int) ([]uint32, error) {
	e, err := r.present(i)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 4*int(e.Rows))
	if err := r.decode(raw, i, int(e.first)); err != nil {
		return nil, err
	}
	ids := make([]uint32, e.Rows)
	for t := range ids {
		ids[t] = binary.LittleEndian.Uint32(raw[4*t:])
	}
	return ids, nil
}

// Mask returns the entry's mask, one byte a token.
func (r *Reader) Mask(i int) ([]byte, error) {
	e, err := r.present(i)
	if err != nil {
		return nil, err
	}
	bits, err := r.bits(i, int(e.first)+1)
	if err != nil {
		return nil, err
	}
	mask := make([]byte, e.Rows)
	for t := range mask {
		mask[t] = bits[t>>3] >> (t & 7) & 1
	}
	return mask, nil
}

// bits decodes a bit field of entry i.
func (r *Reader) bits(i, chunk int) (bitmap, error) {
	n := int(r.entries[i].Rows)
	bits := newBitmap(n)
	if err := r.decode(bits, i, chunk); err != nil {
		return nil, err
	}
	if !bits.clean(n) {
		return nil, r.corrupt(i, chunk, errReserved)
	}
	return bits, nil
}

// LayerRows returns the numbers of the rows that a layer holds of an entry,
// ascending, or nil where it holds all.
func (r *Reader) LayerRows(entry, layer int) ([]uint32, error) {
	e, err := r.checkLayer(entry, layer)
	if err != nil {
		return nil, err
	}
	chunk := int(e.first) + 2 + layer
	if e.flags&flagSelected == 0 || r.chunks[chunk].raw == 0 {
		return nil, nil
	}
	bits, err := r.bits(entry, chunk)
	if err != nil {
		return nil, err
	}
	rows := make([]uint32, 0, bits.ones())
	for b := range r.lay.blocks(e.Rows) {
		from, to := r.lay.block(e.Rows, b)
		for t := from; t < to; t++ {
			if bits.has(t) {
				rows = append(rows, uint32(t))
			}
		}
		if got, want := bits.onesIn(from, to), r.stored(e, layer, b); got != want {
			return nil, r.corrupt(entry, chunk, fmt.Errorf("row map has %d rows in block %d, its chunk %d", got, b, want))
		}
	}
	return rows, nil
}

// LayerLen returns how many rows a layer holds of an entry: all its tokens
// unless rows were selected; 0 of an absent entry.
func (r *Reader) LayerLen(entry, layer int) int {
	e, err := r.checkLayer(entry, layer)
	if err != nil {
		return 0
	}
	n := 0
	for b := range r.lay.blocks(e.Rows) {
		n += r.stored(e, layer, b)
	}
	return n
}

func (r *Reader) checkLayer(entry, layer int) (*entryRec, error) {
	e, err := r.present(entry)
	if err == nil && (layer < 0 || layer >= r.lay.layers) {
		err = fmt.Errorf("%s: layer index %d of %d", r.path, layer, r.lay.layers)
	}
	return e, err
}

// blockChunk returns the number of the chunk of a block and layer.
func (r *Reader) blockChunk(e *entryRec, layer, block int) int {
	return int(e.first) + r.lay.heads(e.flags) + block*r.lay.layers + layer
}

// stored is the number of rows that the chunk of a block and layer holds.
func (r *Reader) stored(e *entryRec, layer, block int) int {
	return int(r.chunks[r.blockChunk(e, layer, block)].raw) / r.lay.rowBytes
}

// Layer decodes rows [first, first+n) of those stored of one captured layer (an
// index into Meta.Layers) into dst, which has n*RowBytes bytes. Rows are
// numbered from 0 to LayerLen: where the layer holds all rows these are the
// tokens, else LayerRows says which tokens they are. After an error dst holds
// nothing of use.
func (r *Reader) Layer(dst []byte, entry, layer, first, n int) error {
	e, err := r.checkLayer(entry, layer)
	if err != nil {
		return err
	}
	rb := r.lay.rowBytes
	if first < 0 || n < 0 || n > maxRows || len(dst) != n*rb {
		return fmt.Errorf("%s: entry %d: rows [%d, +%d) of %d bytes into %d bytes", r.path, entry, first, n, rb, len(dst))
	}
	b, at := 0, 0 // the block, and the stored row that it begins with
	if e.flags&flagSelected == 0 {
		b = min(first/r.lay.blockRows, r.lay.blocks(e.Rows))
		at = b * r.lay.blockRows
	}
	for ; n > 0 && b < r.lay.blocks(e.Rows); b++ {
		have := r.stored(e, layer, b)
		if skip := first - at; skip < have {
			k := min(n, have-skip)
			if err := r.part(dst[:k*rb], entry, r.blockChunk(e, layer, b), skip*rb); err != nil {
				return err
			}
			dst, first, n = dst[k*rb:], first+k, n-k
		}
		at += have
	}
	if n > 0 {
		return fmt.Errorf("%s: entry %d: layer index %d has %d rows, asked for up to %d", r.path, entry, layer, r.LayerLen(entry, layer), first+n)
	}
	return nil
}

// part decodes bytes [skip, skip+len(dst)) of a chunk's raw bytes.
func (r *Reader) part(dst []byte, entry, chunk, skip int) error {
	raw := int(r.chunks[chunk].raw)
	if len(dst) == raw {
		return r.decode(dst, entry, chunk)
	}
	s := r.scratch()
	defer r.pool.Put(s)
	s.raw = grow(s.raw, raw)
	if _, err := r.decodeWith(s, s.raw, chunk); err != nil {
		return r.corrupt(entry, chunk, err)
	}
	copy(dst, s.raw[skip:])
	return nil
}

// decode fills dst with a chunk's raw bytes.
func (r *Reader) decode(dst []byte, entry, chunk int) error {
	s := r.scratch()
	defer r.pool.Put(s)
	if _, err := r.decodeWith(s, dst, chunk); err != nil {
		return r.corrupt(entry, chunk, err)
	}
	return nil
}

// decodeWith fills dst with a chunk's raw bytes and checks them; it also returns
// the bytes that were in the file, valid until s is used again.
func (r *Reader) decodeWith(s *scratch, dst []byte, chunk int) (enc []byte, err error) {
	c := &r.chunks[chunk]
	if c.codec == codec.Raw {
		if err := readAt(r.src, dst, c.off); err != nil {
			return nil, err
		}
		enc = dst
	} else {
		s.enc = grow(s.enc, int(c.enc))
		if err := readAt(r.src, s.enc, c.off); err != nil {
			return nil, err
		}
		enc = s.enc
		if s.dec == nil {
			if s.dec, err = codec.NewDecoder(r.meta.DType); err != nil {
				return enc, err
			}
		}
		if err := s.dec.Decode(dst, enc, c.codec); err != nil {
			return enc, err
		}
	}
	if xxhash.Sum64(dst) != c.hash {
		return enc, errChecksum
	}
	return enc, nil
}

func (r *Reader) scratch() *scratch {
	if s, ok := r.pool.Get().(*scratch); ok {
		return s
	}
	return &scratch{}
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n)
	}
	return b[:n]
}

// corrupt names a damaged chunk.
func (r *Reader) corrupt(entry, chunk int, err error) error {
	what := fmt.Sprintf("entry %d, chunk %d", entry, chunk)
	e := &r.entries[entry]
	if layer, _ := r.lay.at(e, chunk-int(e.first)); layer >= 0 {
		what += fmt.Sprintf(" (layer %d)", r.meta.Layers[layer])
	}
	return &CorruptError{Path: r.path, Offset: r.chunks[chunk].off, What: what, Err: err}
}
