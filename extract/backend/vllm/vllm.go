package vllm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"

	"golang.org/x/sys/unix"
)

// Options configures the client.
type Options struct {
	Endpoints []string // base URLs, each a slot
	// Model is the name that requests carry; "": the first that a server lists.
	Model   string
	Hidden  int   // of the target; a server does not tell
	Layers  int   // decoder layers of the target
	Vocab   int   // ids at or above it are not sent; 0: all are
	Capture []int // what the servers were started with, ascending
	DType   string
	// SharedDir is the servers' shared_storage_path as it is called here. "":
	// files are looked for under the path that the server names.
	SharedDir string
	APIKey    string // sent as a bearer token, and nowhere else
	// Tag is part of every request's id, and so of the names of the files that
	// it may remove; two runs at the same time must differ in it. "": random,
	// and files of an earlier run stay.
	Tag         string
	InFlight    int64         // bytes of states in flight at an endpoint; 0: a quarter of the shared directory, at most 4 GiB
	Concurrency int           // requests in flight at an endpoint; 0: 32
	Timeout     time.Duration // of one answer; 0: 20 minutes
	FileWait    time.Duration // for a file after its answer; 0: 2 minutes
	Attempts    int           // for one request while the server fails; 0: 4
	Backoff     time.Duration // before the second attempt, doubling; 0: 500 ms

	chunk int // bytes of one piece; 0: 8 MiB
}

// Backend is a set of endpoints.
type Backend struct {
	o     Options
	ends  []*link.Endpoint
	count atomic.Uint64

	mu     sync.Mutex
	flight map[string]bool      // ids of requests in flight
	lost   map[string]time.Time // ids of requests given up, and when: a file may yet come
	models map[int]served       // what an endpoint serves, by slot
}

var _ backend.Backend = (*Backend)(nil)

// New checks o. Nothing is sent yet.
func New(o Options) (*Backend, error) {
	b := &Backend{flight: map[string]bool{}, lost: map[string]time.Time{}, models: map[int]served{}}
	var err error
	if b.ends, err = link.Endpoints("vllm", o.APIKey, "/v1", o.Endpoints); err != nil {
		return nil, err
	}
	if o.DType == "" {
		o.DType = "bf16"
	}
	if _, ok := dtypes[o.DType]; !ok {
		return nil, fmt.Errorf("vllm: dtype %q: want bf16, fp16 or fp32", o.DType)
	}
	if o.Hidden <= 0 || o.Layers <= 0 {
		return nil, fmt.Errorf("vllm: hidden size %d and %d layers: the model's configuration must tell both", o.Hidden, o.Layers)
	}
	for i, k := range o.Capture {
		if k < 0 || k > o.Layers || i > 0 && k <= o.Capture[i-1] {
			return nil, fmt.Errorf("vllm: layers %v: want ascending ids between 0 and %d", o.Capture, o.Layers)
		}
	}
	if len(o.Capture) == 0 {
		return nil, errors.New("vllm: no layers to capture")
	}
	o.setDefaults()
	b.o = o
	return b, nil
}

func (o *Options) setDefaults() {
	if o.Tag == "" {
		var r [6]byte
		_, _ = rand.Read(r[:]) // never fails
		o.Tag = hex.EncodeToString(r[:])
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 32
	}
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Minute
	}
	if o.FileWait <= 0 {
		o.FileWait = 2 * time.Minute
	}
	if o.Attempts <= 0 {
		o.Attempts = 4
	}
	if o.Backoff <= 0 {
		o.Backoff = 500 * time.Millisecond
	}
	if o.chunk <= 0 {
		o.chunk = 8 << 20
	}
	if o.InFlight <= 0 {
		o.InFlight = 1 << 30
		var st unix.Statfs_t
		if o.SharedDir != "" && unix.Statfs(o.SharedDir, &st) == nil {
			room := int64(st.Bavail) * st.Bsize / 4 / int64(len(o.Endpoints))
			o.InFlight = min(max(room, 64<<20), 4<<30)
		}
	}
}

// tokenBytes is the size of one token's states.
func (b *Backend) tokenBytes() int { return len(b.o.Capture) * b.o.Hidden * dtypes[b.o.DType].size }

// served is what an endpoint says of itself.
type served struct {
	model     string
	version   string
	maxLength int // tokens, the one to be generated included; 0: not told
}

// Describe implements backend.Backend: it asks all endpoints, and fails when
// none answers. Those that do must serve the same model.
func (b *Backend) Describe(ctx context.Context) (backend.Info, error) {
	var errs []error
	var versions []string
	i := backend.Info{
		Engine: "vllm", Hidden: b.o.Hidden, Layers: b.o.Layers, Vocab: b.o.Vocab, Capture: slices.Clone(b.o.Capture), DType: b.o.DType,
		LastPreNorm: true, Slots: len(b.ends), MaxInFlight: b.o.Concurrency, RowRanges: true,
	}
	for slot := range b.ends {
		hc := link.New(1)
		m, err := b.discover(ctx, hc, slot)
		hc.Close()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i.Model != "" && m.model != i.Model {
			return i, fmt.Errorf("vllm: %s serves %q, another endpoint %q", b.Name(slot), m.model, i.Model)
		}
		i.Model = m.model
		versions = append(versions, m.version)
		if n := m.maxLength - 1; m.maxLength > 0 && (i.MaxTokens == 0 || n < i.MaxTokens) {
			i.MaxTokens = n
		}
	}
	if i.Model == "" {
		return i, errors.Join(errs...)
	}
	slices.Sort(versions)
	i.Version = strings.Join(slices.Compact(versions), "+")
	return i, nil
}

// Name is an endpoint for people; a password in it is not shown.
func (b *Backend) Name(slot int) string { return b.ends[slot].Name() }

// local is the path of a file that the server names, as it is called here.
func (b *Backend) local(path string) (string, error) {
	if !filepath.IsAbs(path) || filepath.Ext(path) != ".safetensors" {
		return "", fmt.Errorf("the server names %q as the file of states", path)
	}
	path = filepath.Clean(path)
	if b.o.SharedDir != "" && filepath.Dir(path) != filepath.Clean(b.o.SharedDir) {
		path = filepath.Join(b.o.SharedDir, filepath.Base(path)) // another mount of the same directory
	}
	return path, nil
}

// Close implements backend.Backend. It waits a moment for files of requests
// that were given up, to remove them.
func (b *Backend) Close() error {
	b.mu.Lock()
	lost := len(b.lost)
	b.mu.Unlock()
	for range 20 {
		if lost == 0 || b.Sweep() == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}
