package extract

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"eaglebatch/internal/progress"
	"eaglebatch/store/blob"
)

// entryKey names an entry of an own blob.
type entryKey struct{ blob, entry int }

// knownKey names a sample in whatever generation.
type knownKey struct {
	dataset string
	sample  uint64
}

// request is a sample on its way: credit taken, rows collected.
type request struct {
	id      uint64
	job     *job // nil: the canary
	entry   int  // of the job's blob, or of the canaries
	ids     []uint32
	mask    []byte
	stream  bool // larger than all credit: rows go to the blob as they come
	suspect bool // the engine died at it twice: sent with nothing else in flight

	// Guarded by run.mu.
	credit int
	slabs  [][]byte
	taken  bool   // the engine has it
	heldAt uint64 // the last request that was sent before it was held
	proof  bool   // a canary whose answer decides over what is held

	// Of the goroutine that receives chunks.
	got    int
	bad    error // found in the rows that came; the request ends when all have
	sense  *senseRows
	canary []byte // the rows, where this is the canary
}

func (rq *request) key() entryKey { return entryKey{rq.job.no, rq.entry} }

// job is one slot's work on one blob.
type job struct {
	r       *run
	s       *slot
	no      int
	entries int
	next    int   // first entry not asked for yet; guarded by run.mu
	full    bool  // everything written, being committed; guarded by run.mu
	lost    bool  // sealed by another slot, or dropped; guarded by run.mu
	left    int64 // bytes of rows, as they are kept, that have not come yet; guarded by run.mu
	counted progress.Delta

	mu     sync.Mutex
	w      *blob.Writer
	turn   int // entry to be written next
	ready  map[int]*request
	skip   map[int]string // to be left out when their turn comes
	absent map[int]string // left out
	closed bool           // committed or dropped

	scored sync.WaitGroup // samples handed to sense
	poor   map[int]poor   // entries with hardly a hit; guarded by sense.mu
}

func blobName(no int) string { return blob.FileName(uint32(no)) }

func (r *run) blobPath(no int) string { return filepath.Join(r.dir, blobName(no)) }

// blobMeta is the header of own blob no.
func (r *run) blobMeta(no int) blob.Meta {
	m := r.meta
	m.Blob = uint32(no)
	return m
}

// create begins the blob's file.
func (j *job) create() error {
	if j.w != nil {
		return nil
	}
	w, err := blob.Create(j.r.blobPath(j.no), j.r.blobMeta(j.no), blob.WriterOptions{
		FS:      j.r.fs,
		Threads: max(1, j.r.o.Threads/len(j.r.slots)),
		Tag:     "s" + strconv.Itoa(j.s.no),
		Room:    j.r.room,
	})
	if err != nil {
		return err
	}
	j.w = w
	return nil
}

// put takes a complete sample; it is written when its turn comes.
func (j *job) put(ctx context.Context, rq *request) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		j.s.release(rq)
		return nil
	}
	j.ready[rq.entry] = rq
	return j.flush(ctx)
}

// leaveOut records that an entry is quarantined.
func (j *job) leaveOut(ctx context.Context, entry int, reason string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	j.skip[entry] = reason
	return j.flush(ctx)
}

// flush writes the entries whose turn has come.
func (j *job) flush(ctx context.Context) error {
	for ; j.turn < j.entries; j.turn++ {
		reason, absent := j.skip[j.turn]
		rq := j.ready[j.turn]
		if !absent && rq == nil {
			return nil
		}
		e := j.r.idx.Entry(j.no, j.turn)
		if err := j.create(); err != nil {
			return err
		}
		if absent {
			delete(j.skip, j.turn)
			j.absent[j.turn] = reason
			if err := j.w.Skip(e, reason); err != nil {
				return err
			}
			j.count(e, false)
			continue
		}
		delete(j.ready, j.turn)
		if err := j.write(ctx, e, rq); err != nil {
			return err
		}
		j.s.release(rq)
		j.count(e, true)
	}
	j.closed = true
	j.finish(ctx)
	return nil
}

// write writes one sample from its slabs.
func (j *job) write(ctx context.Context, e blob.Entry, rq *request) error {
	tb := j.r.cost.tokenBytes
	if err := j.w.Begin(e, rq.ids, rq.mask); err != nil {
		return err
	}
	rows := int(e.Rows)
	for _, slab := range rq.slabs {
		n := min(rows, j.s.credit.slabRows)
		if err := j.rows(ctx, slab[:n*tb], n); err != nil {
			return err
		}
		rows -= n
	}
	return j.w.End()
}

// rows writes n rows of the entry begun.
func (j *job) rows(ctx context.Context, data []byte, n int) error {
	if err := j.w.Rows(ctx, data, n); err != nil {
		return err
	}
	j.less(n)
	return nil
}

// less takes n rows off what the blob has still to write.
func (j *job) less(n int) {
	j.r.mu.Lock()
	j.left -= int64(n) * int64(j.r.cost.kept)
	j.r.mu.Unlock()
}

// stream writes rows of a sample that is larger than all credit; first ones
// begin the entry. It is the sample's turn, since all else had to be written
// before the credit was free.
func (j *job) stream(ctx context.Context, rq *request, data []byte, n int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		if rq.got+n == len(rq.ids) {
			j.s.release(rq)
		}
		return nil
	}
	if j.turn != rq.entry {
		return fmt.Errorf("blob %d: rows of entry %d while entry %d is due", j.no, rq.entry, j.turn)
	}
	if err := j.create(); err != nil {
		return err
	}
	e := j.r.idx.Entry(j.no, rq.entry)
	if rq.got == 0 {
		if err := j.w.Begin(e, rq.ids, rq.mask); err != nil {
			return err
		}
	}
	if err := j.rows(ctx, data, n); err != nil {
		return err
	}
	if rq.got+n < len(rq.ids) {
		return nil
	}
	if err := j.w.End(); err != nil {
		return err
	}
	j.turn++
	j.s.release(rq)
	j.count(e, true)
	return j.flush(ctx)
}

// restart begins the blob anew: a sample failed whose rows are partly written, or
// would be, had they been good. Only blobs with a sample larger than all credit
// come to this, and such a sample is alone in flight.
func (j *job) restart() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil
	}
	var err error
	if j.w != nil {
		err = j.w.Abort()
	}
	j.w, j.turn = nil, 0
	j.skip, j.absent = map[int]string{}, map[int]string{}
	j.uncount()
	j.r.mu.Lock()
	j.next, j.left = 0, j.r.blobTokens(j.no)*int64(j.r.cost.kept)
	for e, rq := range j.ready {
		j.s.credit.back(rq, true)
		delete(j.ready, e)
	}
	j.s.resend, j.s.held = without(j.s.resend, j), without(j.s.held, j)
	j.r.cond.Broadcast()
	j.r.mu.Unlock()
	return err
}

// drop gives the blob up: its file goes, and its credit.
func (j *job) drop() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var err error
	if !j.closed && j.w != nil {
		err = j.w.Abort()
		j.w = nil
	}
	if !j.closed {
		j.uncount()
	}
	j.closed = true
	j.r.mu.Lock()
	defer j.r.mu.Unlock()
	j.lost = true
	for _, rq := range j.ready {
		j.s.credit.back(rq, true)
	}
	j.ready = nil
	j.s.resend, j.s.held = without(j.s.resend, j), without(j.s.held, j)
	j.r.forget(j)
	j.r.cond.Broadcast()
	return err
}

// without returns rqs less those of j, whose credit is given back.
func without(rqs []*request, j *job) []*request {
	kept := rqs[:0]
	for _, rq := range rqs {
		if rq.job == j {
			j.s.credit.back(rq, true)
			continue
		}
		kept = append(kept, rq)
	}
	clear(rqs[len(kept):])
	return kept
}

// count reports a sample that was written or left out, while it is not
// committed yet.
func (j *job) count(e blob.Entry, there bool) {
	d := progress.Delta{Units: 1}
	if there {
		d.Tokens = int64(e.Rows)
		d.Bytes = d.Tokens * int64(j.r.cost.kept)
	} else {
		j.less(int(e.Rows))
	}
	j.counted.Units += d.Units
	j.counted.Tokens += d.Tokens
	j.counted.Bytes += d.Bytes
	j.r.rep.Add(d)
}

// idle reports that nothing of the blob has come yet.
func (j *job) idle() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.closed && j.turn == 0 && len(j.ready) == 0 && j.w == nil
}

// uncount takes back what count reported.
func (j *job) uncount() {
	c := j.counted
	if c.Units == 0 {
		return
	}
	j.counted = progress.Delta{}
	j.r.rep.Add(progress.Delta{Units: -c.Units, Tokens: -c.Tokens, Bytes: -c.Bytes})
}

// finish commits the complete blob, aside, so that the slot goes on.
func (j *job) finish(ctx context.Context) {
	j.r.mu.Lock()
	j.full = true
	j.r.cond.Broadcast()
	j.r.mu.Unlock()
	w := j.w
	j.r.commits.Go(func() {
		j.scored.Wait() // no state is kept that was not looked at
		err := ctx.Err()
		won := err == nil && !j.r.doubt(j) && j.r.claim(j)
		if won {
			err = j.r.commit(ctx, j, w)
		}
		if !won {
			j.uncount()
		}
		if aerr := w.Abort(); err == nil {
			err = aerr
		}
		j.r.mu.Lock()
		j.r.forget(j)
		j.r.cond.Broadcast()
		j.r.mu.Unlock()
		if err != nil && !errors.Is(err, context.Canceled) {
			j.r.fail(j.r.spaceError(err, 0))
		}
	})
}
