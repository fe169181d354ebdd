package ingest

import (
	"bytes"

	"eaglebatch/store/samples"
)

const (
	// blockSize is how much text a parser gets at once.
	blockSize = 1 << 20
	// MaxLine is the longest line that is read, in bytes: some six million
	// tokens with their mask. Longer ones are rejected without being held.
	MaxLine = 64 << 20
	// keptLine is how much of a rejected line is kept.
	keptLine = 1 << 20
)

// class is what became of a line.
type class uint8

const (
	accepted class = iota
	blank
	rejected
)

// line is a line of a block, parsed.
type line struct {
	off, n  int // its text within the block's
	class   class
	verdict verdict
	id      string
	first   int // of its tokens in the block's ids and mask
	tokens  int
	segs    []samples.Segment
	row     samples.Row
}

// block is a run of whole lines of one file on its way from the reader through
// a parser to the committer. The reader fills the first part, a parser the
// second.
type block struct {
	text     []byte // pad bytes may be read behind it
	file     int
	offset   int64  // of text in the uncompressed file
	size     int64  // uncompressed bytes it stands for: more than text has where a line was too long
	raw      int64  // bytes of the file on disk that have been read
	state    []byte // hash of the file on disk up to here, where plain
	hash     string // of the whole file, hex, in its last block
	last     bool   // of its file
	overlong bool   // one line of more than MaxLine, text has its beginning
	err      error  // reading failed behind the blocks before this one
	held     int64  // bytes of the budget

	lines []line
	ids   []uint32
	mask  []byte
	done  chan struct{}
}

func newBlock() *block {
	return &block{text: make([]byte, 0, blockSize+pad), done: make(chan struct{}, 1)}
}

// recycle readies b for another use. What a giant line made large is given
// back to the collector.
func (b *block) recycle() *block {
	if cap(b.text) > 4*blockSize || cap(b.ids) > 4*blockSize {
		return newBlock()
	}
	*b = block{text: b.text[:0], lines: b.lines[:0], ids: b.ids[:0], mask: b.mask[:0], done: b.done}
	return b
}

var bom = []byte("\xef\xbb\xbf")

// parse parses every line of b.
func (b *block) parse(r *record) {
	if b.overlong {
		b.lines = append(b.lines, line{n: len(b.text), class: rejected, verdict: reject(reasonTooLong,
			"the line has %d bytes; the longest that is read is %d", b.size, MaxLine)})
		return
	}
	text := b.text[:len(b.text)+pad]
	clear(text[len(b.text):])
	for at := 0; at < len(b.text); {
		end, next := len(b.text), len(b.text)
		if i := bytes.IndexByte(b.text[at:], '\n'); i >= 0 {
			end, next = at+i, at+i+1
		}
		start := at
		if at == 0 && b.offset == 0 && bytes.HasPrefix(b.text[:end], bom) {
			start += len(bom)
		}
		l := line{off: at, n: end - at}
		b.parseLine(r, &l, text, start, end)
		b.lines = append(b.lines, l)
		at = next
	}
}

func (b *block) parseLine(r *record, l *line, text []byte, start, end int) {
	if len(bytes.Trim(text[start:end], " \t\r")) == 0 {
		l.class = blank
		return
	}
	if l.verdict = r.parse(text, start, end); l.verdict.reason != "" {
		l.class = rejected
		return
	}
	l.id = string(r.id)
	l.first, l.tokens = len(b.ids), len(r.ids)
	b.ids = append(b.ids, r.ids...)
	b.mask = append(b.mask, r.mask...)
	if len(r.segs) > 0 {
		l.segs = append([]samples.Segment(nil), r.segs...)
	}
	l.row = r.hash.Row(&samples.Sample{IDs: r.ids, Mask: r.mask})
}
