package codec

import (
	"encoding/binary"
	"math/bits"
)

// portableBlock is how many symbols the portable code sends through the tree
// at once: few enough to stay in cache and to bound the room it takes, which
// is one block for each level.
const portableBlock = 4096

// encodeTreeGo sends top down the tree: it appends the bits of every inner
// node, and the symbols that reach the literal leaf.
func encodeTreeGo(t *tree, top []byte) {
	t.literal = t.literal[:0]
	w := walker{tree: t}
	w.mark(0)
	t.arena = grow(t.arena, (maxLeaves+1)*portableBlock)
	for len(top) > 0 {
		n := min(len(top), portableBlock)
		w.down(0, top[:n], t.arena)
		top = top[n:]
	}
}

// decodeTreeGo is the inverse of encodeTreeGo.
func decodeTreeGo(t *tree, top []byte) {
	w := walker{tree: t}
	t.arena = grow(t.arena, (maxLeaves+1)*portableBlock)
	for len(top) > 0 {
		n := min(len(top), portableBlock)
		w.up(0, top[:n], t.arena)
		top = top[n:]
	}
}

type walker struct {
	*tree
	right [maxLeaves][256]uint8 // of each inner node: 1 for symbols that go right
}

// mark notes at every inner node which symbols go right and returns those
// that get to slot. Symbols without a leaf are those of the literal leaf.
func (w *walker) mark(slot uint32) (reach [256]bool) {
	switch {
	case slot == slotLiteral:
		for s := range reach {
			reach[s] = true
		}
		for _, s := range w.symbol[:w.leaves] {
			reach[s] = false
		}
	case slot >= slotLeaf:
		reach[w.symbol[slot-slotLeaf]] = true
	default:
		reach = w.mark(w.nodes[slot].left)
		for s, in := range w.mark(w.nodes[slot].right) {
			if in {
				reach[s] = true
				w.right[slot][s] = 1
			}
		}
	}
	return reach
}

// down sends in, the symbols that reach slot, further down.
func (w *walker) down(slot uint32, in, arena []byte) {
	if len(in) == 0 || slot >= slotLeaf {
		if slot == slotLiteral {
			w.literal = append(w.literal, in...)
		}
		return
	}
	n := &w.nodes[slot]
	goes := &w.right[slot]
	// The left go to the start of the room, the right, in reverse, to its end.
	room := arena[:len(in)]
	l, r := 0, len(in)-1
	for at := 0; at < len(in); at += 64 {
		var word uint64
		part := in[at:min(at+64, len(in))]
		for i, s := range part {
			b := goes[s]
			word |= uint64(b) << i
			room[l] = s
			room[r] = s
			l += int(1 - b)
			r -= int(b)
		}
		w.put(n, word, len(part))
	}
	right := room[l:]
	for i, j := 0, len(right)-1; i < j; i, j = i+1, j-1 {
		right[i], right[j] = right[j], right[i]
	}
	w.down(n.left, room[:l], arena[len(in):])
	w.down(n.right, right, arena[len(in):])
}

// put appends count bits to those of n.
func (w *walker) put(n *innerNode, word uint64, count int) {
	at := w.streams[n.pos>>6<<3:]
	binary.LittleEndian.PutUint64(at, binary.LittleEndian.Uint64(at)|word<<(n.pos&63))
	binary.LittleEndian.PutUint64(at[8:], word>>1>>(^n.pos&63))
	n.pos += uint64(count)
}

// get reads the next count bits of n.
func (w *walker) get(n *innerNode, count int) uint64 {
	at := w.streams[n.pos>>6<<3:]
	word := binary.LittleEndian.Uint64(at)>>(n.pos&63) | binary.LittleEndian.Uint64(at[8:])<<1<<(^n.pos&63)
	n.pos += uint64(count)
	return word & (^uint64(0) >> (uint(-count) & 63))
}

// up fills out with the symbols that reach slot.
func (w *walker) up(slot uint32, out, arena []byte) {
	switch {
	case len(out) == 0:
		return
	case slot == slotLiteral:
		copy(out, w.literal)
		w.literal = w.literal[len(out):]
		return
	case slot >= slotLeaf:
		s := w.symbol[slot-slotLeaf]
		for i := range out {
			out[i] = s
		}
		return
	}
	n := &w.nodes[slot]
	var words [portableBlock / 64]uint64
	ones := 0
	for at := 0; at < len(out); at += 64 {
		word := w.get(n, min(64, len(out)-at))
		words[at/64] = word
		ones += bits.OnesCount64(word)
	}
	room := arena[:len(out)]
	left, right := room[:len(out)-ones], room[len(out)-ones:]
	w.up(n.left, left, arena[len(out):])
	w.up(n.right, right, arena[len(out):])
	l, r := 0, len(left)
	for at := 0; at < len(out); at += 64 {
		word := words[at/64]
		part := out[at:min(at+64, len(out))]
		for i := range part {
			b := int(word & 1)
			word >>= 1
			part[i] = room[l+(r-l)&-b]
			l += 1 - b
			r += b
		}
	}
}
