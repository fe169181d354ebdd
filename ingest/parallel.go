package ingest

import (
	"context"
	"sync"
)

// budget bounds the text that is between the reader and the committer. A
// block larger than the whole budget passes when it is alone.
type budget struct {
	mu   sync.Mutex
	free *sync.Cond
	used int64
	cap  int64
	shut bool
}

func newBudget(n int64) *budget {
	b := &budget{cap: n}
	b.free = sync.NewCond(&b.mu)
	return b
}

// take waits for n bytes; false means that the budget was closed.
func (b *budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.used > 0 && b.used+n > b.cap && !b.shut {
		b.free.Wait()
	}
	b.used += n
	return !b.shut
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	b.used -= n
	b.mu.Unlock()
	b.free.Broadcast()
}

func (b *budget) close() {
	b.mu.Lock()
	b.shut = true
	b.mu.Unlock()
	b.free.Broadcast()
}

// scratchLimit is how large a parser's buffers may stay, in elements.
const scratchLimit = 8 << 20

// parseBlocks reads the files from p, parses their blocks with threads
// parsers and calls commit with each block in the order of the files. Neither
// that order nor any block depends on threads. commit's block is reused
// afterwards.
func parseBlocks(ctx context.Context, r *reader, p position, threads int, memory int64, newRecord func() *record, commit func(*block) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	room := newBudget(memory / 32)
	defer room.close()

	work, ordered, free := make(chan *block), make(chan *block, 4096), make(chan *block, 64)
	r.take = func() *block {
		select {
		case b := <-free:
			return b
		default:
			return newBlock()
		}
	}
	r.emit = func(b *block) bool {
		b.held = max(int64(len(b.text)), blockSize)
		if !room.take(b.held) {
			return false
		}
		select {
		case ordered <- b:
		case <-ctx.Done():
			return false
		}
		select {
		case work <- b:
			return true
		case <-ctx.Done():
			return false
		}
	}
	wg.Go(func() {
		defer close(ordered)
		defer close(work)
		if err := r.run(ctx, p); err != nil {
			b := &block{err: err, done: make(chan struct{}, 1)}
			b.done <- struct{}{}
			select {
			case ordered <- b:
			case <-ctx.Done():
			}
		}
	})
	for range threads {
		wg.Go(func() {
			rec := newRecord()
			for b := range work {
				b.parse(rec)
				if cap(rec.inputIDs.v) > scratchLimit {
					rec = newRecord()
				}
				b.done <- struct{}{}
			}
		})
	}
	for b := range ordered {
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if b.err != nil {
			return b.err
		}
		if err := commit(b); err != nil {
			return err
		}
		room.give(b.held)
		select {
		case free <- b.recycle():
		default:
		}
	}
	return ctx.Err()
}
