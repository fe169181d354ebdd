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

// pipeline carries the blocks of a dataset from the reader to the committer.
type pipeline struct {
	room    *budget
	work    chan *block // to the parsers
	ordered chan *block // to the committer, as read
	free    chan *block // to be used again
}

// parseBlocks reads the files from p, parses their blocks with threads
// parsers and calls commit with each block in the order of the files. Neither
// that order nor any block depends on threads. commit's block is reused
// afterwards.
func parseBlocks(ctx context.Context, r *reader, p position, threads int, memory int64, newRecord func() *record, commit func(*block) error) error {
	l := &pipeline{
		room: newBudget(memory / 32),
		// As many as fit into the budget; it is what bounds them.
		work: make(chan *block), ordered: make(chan *block, 4096), free: make(chan *block, 64),
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer l.room.close()
	r.take, r.emit = l.take, func(b *block) bool { return l.emit(ctx, b) }
	wg.Go(func() { l.read(ctx, r, p) })
	for range threads {
		wg.Go(func() { l.parse(newRecord) })
	}
	return l.commit(ctx, commit)
}

func (l *pipeline) take() *block {
	select {
	case b := <-l.free:
		return b
	default:
		return newBlock()
	}
}

func (l *pipeline) emit(ctx context.Context, b *block) bool {
	b.held = max(int64(len(b.text)), blockSize)
	if !l.room.take(b.held) {
		return false
	}
	for _, ch := range []chan<- *block{l.ordered, l.work} {
		select {
		case ch <- b:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// read runs the reader; its error comes behind the blocks read before it.
func (l *pipeline) read(ctx context.Context, r *reader, p position) {
	defer close(l.ordered)
	defer close(l.work)
	err := r.run(ctx, p)
	if err == nil {
		return
	}
	b := &block{err: err, done: make(chan struct{}, 1)}
	b.done <- struct{}{}
	select {
	case l.ordered <- b:
	case <-ctx.Done():
	}
}

func (l *pipeline) parse(newRecord func() *record) {
	rec := newRecord()
	for b := range l.work {
		b.parse(rec)
		if cap(rec.inputIDs.v) > scratchLimit {
			rec = newRecord()
		}
		b.done <- struct{}{}
	}
}

func (l *pipeline) commit(ctx context.Context, commit func(*block) error) error {
	for b := range l.ordered {
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
		l.room.give(b.held)
		select {
		case l.free <- b.recycle():
		default:
		}
	}
	return ctx.Err()
}
