package extract

// credit bounds the bytes of the rows that a slot has asked for and not yet
// written. It is guarded by run.mu.
type credit struct {
	slabRows  int // rows of a slab
	slabBytes int
	total     int // slabs
	free      int
	slabs     [][]byte // made and not in use
}

const maxSlab = 1 << 20

// newCredit divides a budget into slabs of whole rows.
func newCredit(budget int64, tokenBytes int) *credit {
	slab := min(max(budget/64, 64<<10), maxSlab)
	c := &credit{slabRows: max(1, int(slab)/tokenBytes)}
	c.slabBytes = c.slabRows * tokenBytes
	c.total = max(2, int(budget/int64(c.slabBytes)))
	c.free = c.total
	return c
}

// need returns the slabs for a sample of so many rows, and whether it must be
// streamed: then it takes all the credit and uses no slab.
func (c *credit) need(rows int) (slabs int, stream bool) {
	n := (rows + c.slabRows - 1) / c.slabRows
	if n > c.total {
		return c.total, true
	}
	return n, false
}

// slab gives out a slab that credit was taken for.
func (c *credit) slab() []byte {
	if n := len(c.slabs); n > 0 {
		s := c.slabs[n-1]
		c.slabs = c.slabs[:n-1]
		return s
	}
	return make([]byte, c.slabBytes)
}

// back returns a request's slabs, and its credit if all of it is given back.
func (c *credit) back(rq *request, all bool) {
	c.slabs = append(c.slabs, rq.slabs...)
	rq.slabs = nil
	if all {
		c.free += rq.credit
		rq.credit = 0
	}
}
