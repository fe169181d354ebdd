package blob

import (
	"context"
	"hash/crc32"
	"sync"

	"github.com/cespare/xxhash/v2"

	"eaglebatch/store/codec"
)

// job is one chunk on its way from the caller to the file. Its buffers are used
// again for later chunks, so that memory is bounded by the number of jobs.
type job struct {
	raw  []byte
	enc  []byte
	out  []byte // what goes into the file: raw or enc
	aux  bool   // ids, mask or row map
	rec  chunkRec
	err  error
	done chan struct{}
}

// pipeline encodes jobs on several goroutines and hands them to sink in the
// order of submission. It never stops taking jobs: after an error it only gives
// them back, so that nobody waits forever.
type pipeline struct {
	free  chan *job
	order chan *job
	work  chan *job
	wg    sync.WaitGroup

	mu  sync.Mutex
	err error
}

// encoders of one goroutine; nil where chunks are stored raw.
type encoders struct{ states, aux *codec.Encoder }

func newEncoders(m Meta) (encoders, error) {
	if m.Codec == "raw" {
		return encoders{}, nil
	}
	id, err := codec.Parse(m.Codec)
	if err != nil {
		return encoders{}, err
	}
	if id == codec.Raw {
		return encoders{}, nil
	}
	states, err := codec.NewEncoder(id, m.DType)
	if err != nil {
		return encoders{}, err
	}
	aux, err := codec.NewEncoder(codec.LZ4, m.DType)
	return encoders{states, aux}, err
}

func startPipeline(encs []encoders, jobs int, sink func(*job) error) *pipeline {
	p := &pipeline{
		free:  make(chan *job, jobs),
		order: make(chan *job, jobs),
		work:  make(chan *job, jobs),
	}
	for range jobs {
		p.free <- &job{done: make(chan struct{}, 1)}
	}
	for _, e := range encs {
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			for j := range p.work {
				j.encode(e)
				j.done <- struct{}{}
			}
		}()
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		p.drain(sink)
	}()
	return p
}

func (p *pipeline) drain(sink func(*job) error) {
	for j := range p.order {
		<-j.done
		if p.failed() == nil {
			err := j.err
			if err == nil {
				err = sink(j)
			}
			if err != nil {
				p.fail(err)
			}
		}
		p.free <- j
	}
}

func (p *pipeline) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *pipeline) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// get takes a job with an empty raw buffer of the given capacity.
func (p *pipeline) get(ctx context.Context, capacity int) (*job, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case j := <-p.free:
		if cap(j.raw) < capacity {
			j.raw = make([]byte, 0, capacity)
		}
		*j = job{raw: j.raw[:0], enc: j.enc, done: j.done}
		return j, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// put submits a filled job; it does not block.
func (p *pipeline) put(j *job) {
	p.order <- j
	p.work <- j
}

// stop waits until everything submitted is in the file, and returns the first
// error.
func (p *pipeline) stop() error {
	close(p.order)
	close(p.work)
	p.wg.Wait()
	return p.err
}

func (j *job) encode(e encoders) {
	j.rec = chunkRec{
		hash: xxhash.Sum64(j.raw),
		crc:  crc32.ChecksumIEEE(j.raw),
		raw:  uint32(len(j.raw)),
	}
	j.out = j.raw
	enc := e.states
	if j.aux {
		enc = e.aux
	}
	if enc != nil && len(j.raw) > 0 {
		out, used, err := enc.Encode(j.enc[:0], j.raw)
		if err != nil {
			j.err = err
			return
		}
		j.enc = out
		if used != codec.Raw && len(out) < len(j.raw) {
			j.out, j.rec.codec = out, used
		}
	}
	j.rec.enc = uint32(len(j.out))
}
