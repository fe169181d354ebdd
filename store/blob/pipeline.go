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
	given []byte // rows to be quantized, to raw
	raw   []byte
	enc   []byte
	out   []byte // what goes into the file: raw or enc
	kind  kind
	layer int
	loss  codec.RowLoss
	rec   chunkRec
	err   error
	done  chan struct{}
}

// kind says what a job's chunk is.
type kind int

const (
	ofStates kind = iota
	ofAux         // ids, mask or row map
	ofLosses      // of the entry that ends with it: filled in by the sink, which knows them
)

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

// encoders of one goroutine; nil where chunks are stored raw, and where rows
// come as they are stored.
type encoders struct {
	states, aux *codec.Encoder
	quantizer   *codec.Quantizer
}

func newEncoders(m Meta) (e encoders, err error) {
	if m.Source != "" {
		if e.quantizer, err = codec.NewQuantizer(m.Source, m.Hidden); err != nil {
			return e, err
		}
	}
	id, err := codec.Parse(m.Codec)
	if err != nil || id == codec.Raw {
		return e, err
	}
	if e.states, err = codec.NewEncoder(id, m.DType); err != nil {
		return e, err
	}
	e.aux, err = codec.NewEncoder(codec.LZ4, m.DType)
	return e, err
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
		*j = job{given: j.given[:0], raw: j.raw[:0], enc: j.enc, done: j.done}
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
	if j.kind == ofLosses {
		return
	}
	if e.quantizer != nil && j.kind == ofStates {
		if j.raw, j.loss, j.err = e.quantizer.Rows(j.raw, j.given); j.err != nil {
			return
		}
	}
	j.sum()
	enc := e.states
	if j.kind == ofAux {
		enc = e.aux
	}
	if enc == nil || len(j.raw) == 0 {
		return
	}
	out, used, err := enc.Encode(j.enc[:0], j.raw)
	if err != nil {
		j.err = err
		return
	}
	j.enc = out
	if used != codec.Raw && len(out) < len(j.raw) {
		j.out, j.rec.codec, j.rec.enc = out, used, uint32(len(out))
	}
}

// sum describes the raw bytes as they are stored raw.
func (j *job) sum() {
	j.out = j.raw
	j.rec = chunkRec{
		hash: xxhash.Sum64(j.raw),
		crc:  crc32.ChecksumIEEE(j.raw),
		raw:  uint32(len(j.raw)),
		enc:  uint32(len(j.raw)),
	}
}
