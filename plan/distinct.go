package plan

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"eaglebatch/store/samples"
)

// distinct holds the distinct samples of a plan: those whose tokens differ or,
// where rows are selected by the mask, whose tokens or mask differ. It is an open-addressing table of eight bytes a slot over arrays of
// a few bytes a sample; the hashes themselves stay in the mapped row index,
// and only a 32-bit tag of each is held. At 5 million samples it takes 64 MiB
// for slots and 120 MB for the arrays.
type distinct struct {
	c     *corpus
	masks bool     // samples with the same tokens but another mask are distinct
	slots []uint64 // tag<<32 | number+1, 0: empty

	merged []uint32 // the row that stands for it: its first in the order
	need   []uint32 // rows to store: equal samples are capped alike
	uses   []uint32 // positions that show it
	source []uint32 // 0: computed by this plan; else 1 + number of the older generation
	blob   []uint32
	entry  []uint32

	windows map[uint32]piece // those that are windows of a split sample
}

func newDistinct(c *corpus, masks bool) *distinct {
	return &distinct{c: c, masks: masks, slots: make([]uint64, slotsFor(min(c.total, c.order.Len()))), windows: map[uint32]piece{}}
}

// slotsFor returns a power of two of which n are at most three quarters.
func slotsFor(n int64) int { return 1 << bits.Len64(uint64(max(n, 1))*4/3) }

func (d *distinct) len() int { return len(d.merged) }

// row returns the row of the sample that stands for i.
func (d *distinct) row(i uint32) samples.Row {
	if w, ok := d.windows[i]; ok {
		return w.row
	}
	return d.c.atMerged(d.merged[i])
}

// key returns the identity of a row: the hash of all its tokens, which tells
// samples of different length apart too.
func (d *distinct) key(r samples.Row) [16]byte {
	if d.masks {
		return r.Content
	}
	return r.Tokens
}

// find returns the slot that holds the sample, or the empty slot for it.
func (d *distinct) find(key [16]byte) (slot uint64, number uint32, ok bool) {
	mask := uint64(len(d.slots) - 1)
	tag := uint64(binary.LittleEndian.Uint32(key[8:]))
	for slot = binary.LittleEndian.Uint64(key[:8]) & mask; ; slot = (slot + 1) & mask {
		v := d.slots[slot]
		if v == 0 {
			return slot, 0, false
		}
		if v>>32 != tag {
			continue
		}
		number = uint32(v) - 1
		if d.key(d.row(number)) == key {
			return slot, number, true
		}
	}
}

// add finds or adds the sample of q, counts the position that shows it and
// returns its number.
func (d *distinct) add(q piece) (uint32, error) {
	key := d.key(q.row)
	slot, number, ok := d.find(key)
	if ok {
		d.uses[number]++
		return number, nil
	}
	if len(d.merged) == 1<<32-2 {
		return 0, fmt.Errorf("more than %d distinct samples", len(d.merged))
	}
	number = uint32(len(d.merged))
	d.merged = append(d.merged, q.merged)
	d.need = append(d.need, q.rows)
	d.uses = append(d.uses, 1)
	if q.split {
		d.windows[number] = q
	}
	d.slots[slot] = uint64(binary.LittleEndian.Uint32(key[8:]))<<32 | uint64(number+1)
	if 4*len(d.merged) > 3*len(d.slots) {
		d.grow()
	}
	return number, nil
}

// grow doubles the slots, which only windows of split samples can make too few. Only part of the home slot is in the tag, so the
// hashes are read again from the row index.
func (d *distinct) grow() {
	old := d.slots
	d.slots = make([]uint64, 2*len(old))
	mask := uint64(len(d.slots) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		key := d.key(d.row(uint32(v) - 1))
		slot := binary.LittleEndian.Uint64(key[:8]) & mask
		for d.slots[slot] != 0 {
			slot = (slot + 1) & mask
		}
		d.slots[slot] = v
	}
}

// seal allots the arrays that are filled once all samples are known.
func (d *distinct) seal() {
	n := len(d.merged)
	d.source, d.blob, d.entry = make([]uint32, n), make([]uint32, n), make([]uint32, n)
}
