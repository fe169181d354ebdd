package exporter

import (
	"context"
	"sync"
)

// room is a budget with one taker.
type room struct {
	mu   sync.Mutex
	free int64
	wake chan struct{} // of capacity 1
}

// take waits until n are free and takes them.
func (r *room) take(ctx context.Context, n int64) error {
	for {
		r.mu.Lock()
		if r.free >= n {
			r.free -= n
			r.mu.Unlock()
			return nil
		}
		r.mu.Unlock()
		select {
		case <-r.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *room) give(n int64) {
	r.mu.Lock()
	r.free += n
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// outcome is what a job came to.
type outcome[T any] struct {
	v   T
	err error
}

type job[T any] struct {
	i, cost int64
	done    chan outcome[T] // of capacity 1: a worker never waits
}

// work is what inOrder does: n items, do on so many readers, emit with the
// results in order on the caller's goroutine.
type work[T any] struct {
	n       int64
	readers int
	budget  int64 // of what is begun and not yet emitted, by cost; an item that costs more waits to be alone
	cost    func(i int64) int64
	do      func(ctx context.Context, i int64) (T, error)
	emit    func(i int64, v T) error
}

func inOrder[T any](ctx context.Context, w work[T]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	todo, queue := make(chan job[T]), make(chan job[T], 4*w.readers)
	free := &room{free: w.budget, wake: make(chan struct{}, 1)}
	for range w.readers {
		wg.Go(func() {
			for j := range todo {
				v, err := w.do(ctx, j.i)
				j.done <- outcome[T]{v, err}
			}
		})
	}
	wg.Go(func() {
		defer close(queue)
		defer close(todo)
		for i := range w.n {
			j := job[T]{i: i, cost: min(w.cost(i), w.budget), done: make(chan outcome[T], 1)}
			if free.take(ctx, j.cost) != nil || send(ctx, queue, j) != nil || send(ctx, todo, j) != nil {
				return
			}
		}
	})
	for j := range queue {
		select {
		case r := <-j.done:
			if r.err != nil {
				return r.err
			}
			if err := w.emit(j.i, r.v); err != nil {
				return err
			}
			free.give(j.cost)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return context.Cause(ctx)
}

func send[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
