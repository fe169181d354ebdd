package sglang

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// Options configures the client.
type Options struct {
	Endpoints   []string // base URLs, each a slot
	Hidden      int      // of the target
	Layers      int      // decoder layers of the target
	Vocab       int      // ids at or above it are not sent; 0: all are
	Capture     []int    // must be the last layer alone
	DType       string   // bf16, the only one; "": bf16
	APIKey      string
	Concurrency int           // requests in flight at an endpoint; 0: 8
	Timeout     time.Duration // of one answer; 0: 20 minutes
	Attempts    int           // for one request while the server fails; 0: 4
	Backoff     time.Duration // before the second attempt, doubling; 0: 500 ms
}

// Backend is a set of endpoints.
type Backend struct {
	o     Options
	ends  []*link.Endpoint
	tag   string // of this run, in the keys that part the prefix cache
	count atomic.Uint64
}

const (
	// A value takes eleven bytes in an answer, which is kept in whole until it is
	// decoded; so much may be in flight at an endpoint, and a larger answer alone.
	valueText = 11
	maxText   = 512 << 20
)

var _ backend.Backend = (*Backend)(nil)

// New checks o. Nothing is sent yet.
func New(o Options) (*Backend, error) {
	b := &Backend{tag: rand.Text()}
	var err error
	if b.ends, err = link.Endpoints("sglang", o.APIKey, "", o.Endpoints); err != nil {
		return nil, err
	}
	if o.Hidden <= 0 || o.Layers <= 0 {
		return nil, fmt.Errorf("sglang: hidden size %d and %d layers: the model's configuration must tell both", o.Hidden, o.Layers)
	}
	if !slices.Equal(o.Capture, []int{o.Layers}) {
		return nil, fmt.Errorf("sglang: layers %v: a stock SGLang server gives the last layer alone (%d), after the final norm; "+
			"for others use backend: vllm, or backend: worker", o.Capture, o.Layers)
	}
	if o.DType != "" && o.DType != "bf16" {
		return nil, fmt.Errorf("sglang: dtype %q: the server computes and prints bf16", o.DType)
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Minute
	}
	if o.Attempts <= 0 {
		o.Attempts = 4
	}
	if o.Backoff <= 0 {
		o.Backoff = 500 * time.Millisecond
	}
	b.o = o
	return b, nil
}

// Name is an endpoint for people; a password in it is not shown.
func (b *Backend) Name(slot int) string { return b.ends[slot].Name() }

// Describe implements backend.Backend. It fails when no endpoint answers.
func (b *Backend) Describe(ctx context.Context) (backend.Info, error) {
	i := backend.Info{
		Engine: "sglang", Version: "unknown", Hidden: b.o.Hidden, Layers: b.o.Layers, Vocab: b.o.Vocab, Capture: slices.Clone(b.o.Capture),
		DType: "bf16", Slots: len(b.ends), MaxInFlight: b.o.Concurrency,
	}
	var errs []error
	for slot := range b.ends {
		hc := link.New(1)
		m, err := b.probe(ctx, hc, slot)
		hc.Close()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i.Model != "" && m != i.Model {
			return i, fmt.Errorf("sglang: %s serves %q, another endpoint %q", b.ends[slot].Name(), m, i.Model)
		}
		i.Model = m
	}
	if i.Model == "" {
		return i, errors.Join(errs...)
	}
	return i, nil
}

// probe asks an endpoint which model it serves.
func (b *Backend) probe(ctx context.Context, hc *link.Client, slot int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, link.Probing)
	defer cancel()
	var m struct {
		Model string `json:"model_path"`
	}
	err := b.ends[slot].Do(ctx, hc, link.Call{Method: http.MethodGet, Path: "/model_info", Into: &m})
	if err == nil && m.Model == "" {
		err = errors.New("it does not tell its model: is it SGLang?")
	}
	if err != nil {
		return "", b.ends[slot].Unavailable("/model_info", err)
	}
	return m.Model, nil
}

// Close implements backend.Backend.
func (b *Backend) Close() error {
	return nil
}
