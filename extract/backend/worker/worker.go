package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
)

// Options configures the workers.
type Options struct {
	// Command is the program and its arguments; an argument "{script}" stands
	// for the path of the shipped worker. Empty: python3 {script}.
	Command []string
	Workers int    // children, each a slot; 0: 1
	Model   string // handed on to the workers
	Capture []int  // layer ids, ascending
	DType   string // of the rows: bf16, fp16, fp32; "": bf16
	Device  string
	// LogDir is where worker-N.log is appended to; "": what the workers print
	// is not kept, its last lines apart.
	LogDir string
	// MaxBody bounds the bytes of one answer frame; 0: 8 MiB.
	MaxBody int
	Quiet   time.Duration // without a frame, after which a busy worker is pinged; 0: 20 s
	Dead    time.Duration // after the ping, when it is taken for dead; 0: 60 s
	Load    time.Duration // until HELLO; 0: an hour
	Grace   time.Duration // for a worker to leave by itself; 0: 5 s
}

// Backend is a set of worker processes.
type Backend struct {
	o Options

	mu     sync.Mutex
	closed bool
	parked map[int]*process // running, nobody serves on it
}

var _ backend.Backend = (*Backend)(nil)

// New checks o. No process is started yet.
func New(o Options) (*Backend, error) {
	if len(o.Command) == 0 {
		o.Command = []string{"python3", ScriptArg}
	}
	if o.DType == "" {
		o.DType = "bf16"
	}
	if dtypeSize(o.DType) == 0 {
		return nil, fmt.Errorf("worker: dtype %q: want bf16, fp16 or fp32", o.DType)
	}
	if len(o.Capture) == 0 || !slices.IsSorted(o.Capture) || len(slices.Compact(slices.Clone(o.Capture))) != len(o.Capture) {
		return nil, fmt.Errorf("worker: layers %v: want ascending ids, each once", o.Capture)
	}
	o.Workers = max(o.Workers, 1)
	for d, def := range map[*time.Duration]time.Duration{&o.Quiet: 20 * time.Second, &o.Dead: time.Minute, &o.Load: time.Hour, &o.Grace: 5 * time.Second} {
		if *d <= 0 {
			*d = def
		}
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 8 << 20
	}
	return &Backend{o: o, parked: map[int]*process{}}, nil
}

func dtypeSize(dtype string) int {
	switch dtype {
	case "bf16", "fp16":
		return 2
	case "fp32":
		return 4
	}
	return 0
}

// Describe implements backend.Backend: it starts the first worker.
func (b *Backend) Describe(ctx context.Context) (backend.Info, error) {
	p, err := b.acquire(ctx, 0)
	if err != nil {
		return backend.Info{}, err
	}
	b.park(0, p)
	h := p.hello
	return backend.Info{
		Engine: "worker:" + h.Engine, Version: h.EngineVersion, Model: h.Model,
		Hidden: h.Hidden, Layers: h.NumLayers, Vocab: h.Vocab, Capture: slices.Clone(h.Layers), DType: h.DType,
		LastPreNorm: h.LastPreNorm, MaxTokens: h.MaxTokens, Slots: b.o.Workers, MaxInFlight: h.MaxInFlight,
		Deterministic: h.Deterministic, RowRanges: true,
	}, nil
}

// acquire takes the slot's process, or starts one.
func (b *Backend) acquire(ctx context.Context, slot int) (*process, error) {
	b.mu.Lock()
	p, closed := b.parked[slot], b.closed
	delete(b.parked, slot)
	b.mu.Unlock()
	if closed {
		return nil, errors.New("worker: closed")
	}
	if p != nil && p.alive() {
		return p, nil
	}
	if p != nil {
		p.kill()
	}
	return b.launch(ctx, slot)
}

// park keeps a process for the next use of its slot.
func (b *Backend) park(slot int, p *process) {
	b.mu.Lock()
	old, closed := b.parked[slot], b.closed
	if !closed {
		b.parked[slot] = p
	}
	b.mu.Unlock()
	if old != nil {
		old.kill()
	}
	if closed {
		p.kill()
	}
}

// Close ends all workers and waits for them.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	ps := b.parked
	b.parked = map[int]*process{}
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range ps {
		wg.Go(func() { p.leave(b.o.Grace) })
	}
	wg.Wait()
	return nil
}

// logFile opens the log of a slot.
func (b *Backend) logFile(slot int) (*os.File, error) {
	if b.o.LogDir == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err := os.MkdirAll(b.o.LogDir, 0o777); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(b.o.LogDir, fmt.Sprintf("worker-%d.log", slot)), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
}
