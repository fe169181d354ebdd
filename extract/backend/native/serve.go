package native

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/internal/human"
)

// chunkBytes bounds the rows of one emitted chunk.
const chunkBytes = 8 << 20

// result is a computed batch, or one refused request.
type result struct {
	batch
	refused *backend.Chunk
	err     error
}

// Serve implements backend.Backend. Three stages run at once: one gathers
// requests into the next batch, one computes, and this goroutine emits.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot != 0 {
		return fmt.Errorf("native: slot %d of 1", slot)
	}
	ctx, cancel := context.WithCancel(ctx)
	batches, results := make(chan batch), make(chan result)
	var wg sync.WaitGroup
	wg.Go(func() { b.gather(ctx, in, batches, results) })
	wg.Go(func() { b.compute(ctx, batches, results) })
	go func() {
		wg.Wait()
		close(results)
	}()
	var err error
	for r := range results {
		if err == nil {
			err = b.emit(r, emit)
		}
		if err != nil {
			cancel() // and drain, so that the stages end
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	cancel()
	return err
}

// gather packs requests up to Options.BatchTokens and hands a batch on as soon
// as the engine is free: no request waits for others to come.
func (b *Backend) gather(ctx context.Context, in <-chan backend.Request, batches chan<- batch, results chan<- result) {
	defer close(batches)
	var next batch
	for {
		var ready chan<- batch
		if next.rows > 0 {
			ready = batches
		}
		more := in
		if next.keys >= min(b.max, b.o.BatchTokens) {
			more = nil
		}
		if in == nil && next.rows == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case ready <- next:
			next = batch{}
		case r, ok := <-more:
			if !ok {
				in = nil
				continue
			}
			if bad := b.check(r); bad != nil {
				if !send(ctx, results, result{refused: &backend.Chunk{ID: r.ID, Err: bad}}) {
					return
				}
				continue
			}
			if next.rows > 0 && next.keys+kernel.Up(len(r.Tokens), kernel.Panel) > min(b.max, b.o.BatchTokens) {
				if !send(ctx, batches, next) {
					return
				}
				next = batch{}
			}
			next.add(r)
		}
	}
}

func send[T any](ctx context.Context, ch chan<- T, v T) bool {
	select {
	case ch <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

// check refuses a sample that cannot be computed.
func (b *Backend) check(r backend.Request) error {
	if len(r.Tokens) == 0 {
		return &backend.SampleError{Code: "internal", Permanent: true, Err: errors.New("a sample without tokens")}
	}
	if len(r.Tokens) > b.max {
		return &backend.SampleError{Code: "too_long", Permanent: true, Err: fmt.Errorf("%d tokens: half of extract.memory, %s, suffices for %d: raise extract.memory to %s, or lower plan.max_tokens",
			len(r.Tokens), human.Bytes(b.o.Memory), b.max, human.Bytes(b.Need().Memory(len(r.Tokens))))}
	}
	for i, id := range r.Tokens {
		if int64(id) >= int64(b.dims.vocab) {
			return &backend.SampleError{Code: "bad_token", Permanent: true, Err: fmt.Errorf("token %d at %d lies outside the vocabulary of %d", id, i, b.dims.vocab)}
		}
	}
	return nil
}

func (b *Backend) compute(ctx context.Context, batches <-chan batch, results chan<- result) {
	e := b.newEngine()
	for bt := range batches {
		bt.out = make([]byte, bt.rows*b.rowBytes())
		err := e.forward(ctx, &bt)
		if !send(ctx, results, result{batch: bt, err: err}) || err != nil {
			return
		}
	}
}

// rowBytes is the size of one token's states.
func (b *Backend) rowBytes() int { return len(b.o.Capture) * b.dims.hidden * dtypeSize(b.o.DType) }

func (b *Backend) emit(r result, emit func(backend.Chunk) error) error {
	if r.err != nil {
		return r.err
	}
	if r.refused != nil {
		return emit(*r.refused)
	}
	size := b.rowBytes()
	step := max(1, chunkBytes/size)
	for i := range r.seqs {
		s := &r.seqs[i]
		data := r.out[s.first*size:][:len(s.Tokens)*size]
		for at := 0; at < len(s.Tokens); at += step {
			n := min(step, len(s.Tokens)-at)
			c := backend.Chunk{ID: s.ID, First: at, Rows: n, Data: data[at*size : (at+n)*size]}
			if at == 0 {
				c.Echo = s.Tokens
			}
			if err := emit(c); err != nil {
				return err
			}
		}
	}
	return nil
}
