package codec

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
)

// The tree of a Dense chunk is a Huffman tree whose bits are stored node by
// node, not symbol by symbol. At each inner node every symbol that gets there
// leaves one bit, in order: 0 goes left, 1 goes right. The bits come to those
// of a Huffman code. But while its stream can only be followed one symbol
// after the other, here whole vectors of symbols go down the tree at once:
// 64 at a time by PDEP and PEXT, or a chunk at a time in NumPy by boolean
// indexing.
//
// A (sub)tree that m symbols reach is written as one of
//
//	0, bits [(m+7)/8]u8, left tree, right tree
//	1, symbol u8                                  all m are this symbol
//	2, symbols [m]u8                              rare ones, as they are
//
// Bit i of an inner node is bit i%8 of byte i/8; spare bits are zero.
const (
	kindInner   = 0
	kindLeaf    = 1
	kindLiteral = 2
)

// maxLeaves bounds the leaves with a symbol. Together with the one literal
// leaf a tree may have that makes at most maxLeaves inner nodes.
const maxLeaves = 31

// A slot holds, for the 64 symbols at hand, which of them reach a place in the
// tree: inner node i, leaf j, or the literal leaf.
const (
	slotLeaf    = 32 // + j
	slotLiteral = 63
)

// innerNode is an inner node. Assembly knows the offsets of its fields.
type innerNode struct {
	pos         uint64 // bits of streams up to the next bit to read or write
	left, right uint32 // slots of the children
}

// tree is a tree with its bits. Assembly knows the offsets of the arrays.
type tree struct {
	slots  [64]uint64
	nodes  [32]innerNode // parents come before their children
	table  [32][64]byte  // see upTree and downTree
	inner  int           // nodes in use
	leaves int           // leaves in use
	symbol [32]byte      // of each leaf

	streams []byte   // bits of all inner nodes, each from a multiple of 8 bytes on
	rare    []uint64 // scratch of walk
	arena   []byte   // scratch of walker
	literal []byte   // the symbols of the literal leaf
}

// weigh is a subtree while Huffman's algorithm runs.
type weigh struct {
	count       int
	symbol      int // breaks ties, so that the tree is a function of the counts
	slot        uint32
	left, right *weigh
}

// plan builds the tree for symbols that occur as often as hist says of a
// sample. Rare ones, and any outside the sample, go to the literal leaf, which
// keeps the tree small.
func (t *tree) plan(hist *[256]uint32, sampled bool) {
	var all []*weigh
	total := 0
	for s, n := range hist {
		if n > 0 {
			all = append(all, &weigh{count: int(n), symbol: s})
			total += int(n)
		}
	}
	byCount := func(a, b *weigh) int {
		if a.count != b.count {
			return b.count - a.count
		}
		return a.symbol - b.symbol
	}
	slices.SortFunc(all, byCount)
	keep := min(len(all), maxLeaves)
	for keep > 1 && all[keep-1].count < total>>rareShift {
		keep--
	}
	t.leaves = keep
	rest := &weigh{symbol: 256, slot: slotLiteral}
	for _, w := range all[keep:] {
		rest.count += w.count
	}
	all = all[:keep]
	for i, w := range all {
		w.slot = uint32(slotLeaf + i)
		t.symbol[i] = byte(w.symbol)
	}
	if rest.count > 0 || sampled {
		all = append(all, rest)
	}
	for next := 257; len(all) > 1; next++ {
		slices.SortFunc(all, byCount)
		a, b := all[len(all)-2], all[len(all)-1]
		all = append(all[:len(all)-2], &weigh{count: a.count + b.count, symbol: next, left: a, right: b})
	}
	t.inner = 0
	t.number(all[0])
}

// rareShift makes symbols rare that are fewer than one in 2^rareShift.
const rareShift = 10

// number gives the inner nodes their slots in the order in which the tree is
// written and returns the slot of w.
func (t *tree) number(w *weigh) uint32 {
	if w.left == nil {
		return w.slot
	}
	i := t.inner
	t.inner++
	left := t.number(w.left)
	t.nodes[i] = innerNode{left: left, right: t.number(w.right)}
	return uint32(i)
}

// start gives every inner node room for n bits.
func (t *tree) start(n int) {
	room := streamRoom(n)
	t.streams = grow(t.streams, t.inner*room)
	for i := range t.inner {
		t.nodes[i].pos = uint64(i * room * 8)
		clear(t.streams[i*room : i*room+8])
	}
}

// streamRoom returns the bytes that n bits take where they are written by 64.
func streamRoom(n int) int { return (n/64 + 2) * 8 }

// append appends the tree that n symbols were sent down.
func (t *tree) append(dst []byte, n int) []byte {
	var rec func(slot uint32) []byte
	room := streamRoom(n)
	rec = func(slot uint32) []byte {
		switch {
		case slot == slotLiteral:
			dst = append(dst, kindLiteral)
			dst = append(dst, t.literal...)
		case slot >= slotLeaf:
			dst = append(dst, kindLeaf, t.symbol[slot-slotLeaf])
		default:
			n := &t.nodes[slot]
			start := int(slot) * room
			dst = append(dst, kindInner)
			dst = append(dst, t.streams[start:(int(n.pos)+7)/8]...)
			rec(n.left)
			rec(n.right)
		}
		return dst
	}
	if t.inner == 0 {
		return rec(slotLeaf)
	}
	return rec(0)
}

// parse reads the tree of n symbols that fills src. It proves what decode
// relies on: reading, for every bit of an inner node, one bit of one of its
// children, all nodes come out exactly at the end of their bits.
func (t *tree) parse(src []byte, n int, mask byte) error {
	t.inner, t.leaves, t.literal = 0, 0, nil
	t.streams = t.streams[:0]
	var seen [256]bool
	p := parser{src: src, mask: mask, seen: &seen}
	if _, err := p.tree(t, n); err != nil {
		return err
	}
	if t.inner == 0 && t.leaves == 0 {
		return fmt.Errorf("%w: nothing but literals", ErrMalformed)
	}
	if len(p.src) != 0 {
		return fmt.Errorf("%w: %d spare bytes after the tree", ErrMalformed, len(p.src))
	}
	// Bits are read by 64, from two words where they straddle.
	t.streams = append(t.streams, make([]byte, 16)...)
	return nil
}

type parser struct {
	src     []byte
	mask    byte
	seen    *[256]bool
	literal bool
}

func (p *parser) take(n int) ([]byte, error) {
	if n > len(p.src) {
		return nil, fmt.Errorf("%w: tree cut short: %d bytes left, %d needed", ErrMalformed, len(p.src), n)
	}
	b := p.src[:n]
	p.src = p.src[n:]
	return b, nil
}

// tree reads a subtree that n symbols reach and returns its slot. It calls
// itself at most maxLeaves deep: every inner node counts against that.
func (p *parser) tree(t *tree, n int) (uint32, error) {
	kind, err := p.take(1)
	if err != nil {
		return 0, err
	}
	switch kind[0] {
	case kindInner:
		return p.inner(t, n)
	case kindLeaf:
		s, err := p.take(1)
		if err != nil {
			return 0, err
		}
		if p.seen[s[0]] || s[0]&^p.mask != 0 || t.leaves == maxLeaves {
			return 0, fmt.Errorf("%w: symbol %#x twice, out of range or one too many", ErrMalformed, s[0])
		}
		p.seen[s[0]] = true
		t.symbol[t.leaves] = s[0]
		t.leaves++
		return uint32(slotLeaf + t.leaves - 1), nil
	case kindLiteral:
		if p.literal {
			return 0, fmt.Errorf("%w: second literal leaf", ErrMalformed)
		}
		p.literal = true
		if t.literal, err = p.take(n); err != nil {
			return 0, err
		}
		for _, s := range t.literal {
			if s&^p.mask != 0 {
				return 0, fmt.Errorf("%w: symbol %#x out of range", ErrMalformed, s)
			}
		}
		return slotLiteral, nil
	}
	return 0, fmt.Errorf("%w: tree node of unknown kind %d", ErrMalformed, kind[0])
}

func (p *parser) inner(t *tree, n int) (uint32, error) {
	if t.inner == maxLeaves {
		return 0, fmt.Errorf("%w: more than %d inner nodes", ErrMalformed, maxLeaves)
	}
	b, err := p.take((n + 7) / 8)
	if err != nil {
		return 0, err
	}
	if spareBits(b, n) {
		return 0, fmt.Errorf("%w: spare bits are set", ErrMalformed)
	}
	i := t.inner
	t.inner++
	t.nodes[i].pos = uint64(8 * len(t.streams))
	t.streams = append(t.streams, b...)
	t.streams = append(t.streams, make([]byte, -len(b)&7)...)
	right := onesCount(b)
	if t.nodes[i].left, err = p.tree(t, n-right); err != nil {
		return 0, err
	}
	if t.nodes[i].right, err = p.tree(t, right); err != nil {
		return 0, err
	}
	return uint32(i), nil
}

func onesCount(b []byte) int {
	n := 0
	for len(b) >= 8 {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	for _, v := range b {
		n += bits.OnesCount8(v)
	}
	return n
}
