package blob

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/store/codec"
)

// layout computes which chunks an entry has.
type layout struct {
	layers    int
	rowBytes  int
	blockRows int
}

func newLayout(m Meta) layout {
	return layout{layers: len(m.Layers), rowBytes: m.RowBytes(), blockRows: m.blockRows()}
}

func (l layout) blocks(rows uint32) int { return (int(rows) + l.blockRows - 1) / l.blockRows }

// heads is the number of chunks before the blocks.
func (l layout) heads(flags uint32) int {
	if flags&flagSelected != 0 {
		return 2 + l.layers
	}
	return 2
}

// tails is the number of chunks after the blocks.
func (l layout) tails(flags uint32) int { return int(flags & flagLosses / flagLosses) }

// count is the number of chunks of an entry that is there.
func (l layout) count(flags, rows uint32) int {
	return l.heads(flags) + l.blocks(rows)*l.layers + l.tails(flags)
}

// block returns the rows [from, to) that block b covers.
func (l layout) block(rows uint32, b int) (from, to int) {
	return b * l.blockRows, min(int(rows), (b+1)*l.blockRows)
}

// at says what chunk k of an entry is: a layer and a block, or layer -1 and the
// number of a chunk before the blocks, or lossChunk.
func (l layout) at(e *entryRec, k int) (layer, block int) {
	h := l.heads(e.flags)
	switch {
	case k < h:
		return -1, k
	case e.flags&flagLosses != 0 && k == int(e.chunks)-1:
		return -1, lossChunk
	}
	return (k - h) % l.layers, (k - h) / l.layers
}

// tables is a footer in memory.
type tables struct {
	entries []entryRec
	chunks  []chunkRec
}

// parseFooter checks every number of a footer against the others; data is where
// chunk 0 begins.
func parseFooter(path string, m Meta, b []byte, t trailer, data int64) (*tables, error) {
	ne, nc := int(t.entries), int(t.chunks)
	ft := &tables{entries: make([]entryRec, ne), chunks: make([]chunkRec, nc)}
	off := data
	for i := range ft.chunks {
		if err := ft.chunks[i].parse(b[ne*entryBytes+i*chunkBytes:], off); err != nil {
			if n, ok := err.(*NewerError); ok {
				n.Path = path
				return nil, n
			}
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
		off += int64(ft.chunks[i].enc)
	}
	if off != int64(t.footer) {
		return nil, fmt.Errorf("chunks end at byte %d, footer begins at %d", off, t.footer)
	}
	l, next, reasons := newLayout(m), 0, string(b[ne*entryBytes+nc*chunkBytes:])
	for i := range ft.entries {
		e := &ft.entries[i]
		n, err := e.parse(b[i*entryBytes:], reasons)
		if err == nil && int(e.Dataset) >= len(m.Datasets) {
			err = fmt.Errorf("dataset %d of %d", e.Dataset, len(m.Datasets))
		}
		if err == nil && int(e.first) != next {
			err = fmt.Errorf("begins at chunk %d, want %d", e.first, next)
		}
		if err == nil && e.flags&flagLosses != 0 && m.DType != "fp8" {
			err = fmt.Errorf("losses of %s", m.DType)
		}
		if err == nil {
			err = ft.checkEntry(l, e)
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		reasons, next = reasons[n:], next+int(e.chunks)
	}
	if next != nc || reasons != "" {
		return nil, fmt.Errorf("entries have %d of %d chunks; %d bytes of reasons left over", next, nc, len(reasons))
	}
	return ft, nil
}

func (c *chunkRec) parse(b []byte, off int64) error {
	*c = chunkRec{
		off:   off,
		hash:  binary.LittleEndian.Uint64(b),
		crc:   binary.LittleEndian.Uint32(b[8:]),
		raw:   binary.LittleEndian.Uint32(b[12:]),
		enc:   binary.LittleEndian.Uint32(b[16:]),
		codec: codec.ID(b[20]),
	}
	if b[21]|b[22]|b[23] != 0 {
		return errReserved
	}
	switch c.codec {
	case codec.Raw:
		if c.enc != c.raw {
			return fmt.Errorf("%d raw bytes stored in %d", c.raw, c.enc)
		}
		if c.raw == 0 && (c.hash != xxhash.Sum64(nil) || c.crc != 0) {
			return errChecksum
		}
	case codec.LZ4, codec.Planes, codec.Dense:
		if c.enc == 0 || c.enc >= c.raw {
			return fmt.Errorf("%d bytes encoded in %d", c.raw, c.enc)
		}
		// No lz4 block can grow by more; a claim above it would only serve to
		// make readers allocate.
		if c.codec == codec.LZ4 && uint64(c.raw) > 255*uint64(c.enc) {
			return fmt.Errorf("%d bytes cannot come from %d of lz4", c.raw, c.enc)
		}
	default:
		return &NewerError{What: fmt.Sprintf("codec %d", c.codec)}
	}
	return nil
}

func (e *entryRec) parse(b []byte, reasons string) (n int, err error) {
	e.Sample = binary.LittleEndian.Uint64(b)
	e.Dataset = binary.LittleEndian.Uint32(b[8:])
	e.Rows = binary.LittleEndian.Uint32(b[12:])
	copy(e.Tokens[:], b[16:])
	copy(e.Content[:], b[32:])
	e.first = binary.LittleEndian.Uint32(b[48:])
	e.chunks = binary.LittleEndian.Uint32(b[52:])
	e.flags = binary.LittleEndian.Uint32(b[56:])
	size := binary.LittleEndian.Uint32(b[60:])
	switch {
	case e.flags&^(flagAbsent|flagSelected|flagLosses) != 0 || e.flags&flagAbsent != 0 && e.flags != flagAbsent:
		return 0, fmt.Errorf("flags %#x", e.flags)
	case e.Rows < 1 || e.Rows > maxRows:
		return 0, fmt.Errorf("%d rows, want 1 to %d", e.Rows, maxRows)
	case uint64(size) > uint64(len(reasons)) || size != 0 && e.flags&flagAbsent == 0:
		return 0, fmt.Errorf("reason of %d bytes", size)
	}
	// A copy, so that one reason does not hold the whole footer in memory.
	e.reason = strings.Clone(reasons[:size])
	return int(size), nil
}

// checkEntry holds the entry's chunks to the sizes that its rows ask for.
func (ft *tables) checkEntry(l layout, e *entryRec) error {
	if e.flags&flagAbsent != 0 {
		if e.chunks != 0 {
			return fmt.Errorf("absent, with %d chunks", e.chunks)
		}
		return nil
	}
	want := uint64(l.count(e.flags, e.Rows))
	if uint64(e.chunks) != want || uint64(e.first)+want > uint64(len(ft.chunks)) {
		return fmt.Errorf("%d chunks from %d for %d rows, want %d", e.chunks, e.first, e.Rows, want)
	}
	cs := ft.chunks[e.first:][:want]
	for k := range cs {
		if err := l.checkChunk(e, cs, k); err != nil {
			return fmt.Errorf("chunk %d: %w", int(e.first)+k, err)
		}
	}
	return nil
}

func (l layout) checkChunk(e *entryRec, cs []chunkRec, k int) error {
	c := &cs[k]
	layer, block := l.at(e, k)
	if block == lossChunk {
		if int(c.raw) != lossBytes*l.layers || c.codec != codec.Raw {
			return fmt.Errorf("%d raw bytes of losses for %d layers, codec %d", c.raw, l.layers, c.codec)
		}
		return nil
	}
	if layer < 0 {
		want, empty := bitmapBytes(int(e.Rows)), block >= 2 && c.raw == 0
		if block == 0 {
			want = 4 * int(e.Rows)
		}
		if c.codec > codec.LZ4 {
			return fmt.Errorf("codec %d for ids, mask or row map", c.codec)
		}
		if int(c.raw) != want && !empty {
			return fmt.Errorf("%d raw bytes, want %d", c.raw, want)
		}
		return nil
	}
	from, to := l.block(e.Rows, block)
	full := (to - from) * l.rowBytes
	all := e.flags&flagSelected == 0 || cs[2+layer].raw == 0
	if all && int(c.raw) != full || int(c.raw) > full || int(c.raw)%l.rowBytes != 0 {
		return fmt.Errorf("%d raw bytes for %d rows of %d", c.raw, to-from, l.rowBytes)
	}
	return nil
}
