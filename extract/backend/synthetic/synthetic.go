package synthetic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"eaglebatch/extract/backend"
)

// Options shapes the made-up engine.
type Options struct {
	Hidden  int    // values of one layer's row
	Layers  int    // decoder layers of the pretended model
	Vocab   int    // token ids at or above it are refused; 0: all are taken
	Capture []int  // layer ids, ascending, within [0, Layers]
	DType   string // bf16, fp16 or fp32; "": bf16
	Seed    uint64
	// Rate is the tokens a second of one slot; 0: as fast as memory allows.
	Rate      float64
	Slots     int // 0: 1
	InFlight  int // samples a slot works on at once; 0: 16
	ChunkRows int // rows of one chunk; 0: about 2 MiB
	MaxTokens int // longer samples are refused; 0: none are
	Faults    string
}

// Backend is the made-up engine.
type Backend struct {
	o      Options
	script script
	began  atomic.Int64 // requests whose computation began, over all slots
	serves atomic.Int64 // Serve calls, over all slots

	mu    sync.Mutex
	made  map[uint64]*values // by seed; a drifting engine needs a second one
	drift map[int]bool       // slots that came back with other values
}

var _ backend.Backend = (*Backend)(nil)

// New checks o and prepares the value pools.
func New(o Options) (*Backend, error) {
	if o.DType == "" {
		o.DType = "bf16"
	}
	o.Slots = max(o.Slots, 1)
	if o.InFlight <= 0 {
		o.InFlight = 16
	}
	if o.Hidden <= 0 || o.Layers <= 0 {
		return nil, fmt.Errorf("synthetic: hidden size %d and %d layers: both must be positive", o.Hidden, o.Layers)
	}
	if len(o.Capture) == 0 {
		return nil, errors.New("synthetic: no layers to capture")
	}
	for i, k := range o.Capture {
		if k < 0 || k > o.Layers || i > 0 && k <= o.Capture[i-1] {
			return nil, fmt.Errorf("synthetic: layers %v: want ascending ids between 0 and %d", o.Capture, o.Layers)
		}
	}
	if _, err := formatOf(o.DType); err != nil {
		return nil, err
	}
	sc, err := parseScript(o.Faults)
	if err != nil {
		return nil, err
	}
	o.Capture = slices.Clone(o.Capture)
	b := &Backend{o: o, script: sc, made: map[uint64]*values{}, drift: map[int]bool{}}
	if o.ChunkRows <= 0 {
		b.o.ChunkRows = max(1, chunkBytes/b.values(o.Seed).tokenBytes())
	}
	return b, nil
}

// chunkBytes is what a chunk aims at: small enough to stay in a cache.
const chunkBytes = 2 << 20

// Describe implements backend.Backend.
func (b *Backend) Describe(ctx context.Context) (backend.Info, error) {
	if err := ctx.Err(); err != nil {
		return backend.Info{}, err
	}
	if b.script.down {
		return backend.Info{}, fmt.Errorf("synthetic: %w (scripted)", backend.ErrUnavailable)
	}
	return backend.Info{
		Engine: "synthetic", Version: "1", Model: "synthetic",
		Hidden: b.o.Hidden, Layers: b.o.Layers, Vocab: b.o.Vocab,
		Capture: slices.Clone(b.o.Capture), DType: b.o.DType,
		LastPreNorm: b.o.Capture[len(b.o.Capture)-1] == b.o.Layers,
		MaxTokens:   b.o.MaxTokens, Slots: b.o.Slots, MaxInFlight: b.o.InFlight,
		Deterministic: true, Synthetic: true, RowRanges: true,
	}, nil
}

// Calls returns how many requests the engine began to compute.
func (b *Backend) Calls() int64 { return b.began.Load() }

// Close implements backend.Backend.
func (b *Backend) Close() error { return nil }

// values returns the pools of a seed, made at first use.
func (b *Backend) values(seed uint64) *values {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.made[seed]
	if v == nil {
		v = newValues(b.o.Hidden, b.o.Capture, b.o.DType, seed)
		b.made[seed] = v
	}
	return v
}

func (b *Backend) slotValues(slot int) *values {
	b.mu.Lock()
	seed := b.o.Seed
	if b.drift[slot] {
		seed++
	}
	b.mu.Unlock()
	return b.values(seed)
}
