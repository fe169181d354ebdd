// Package backend is the contract between extraction and the engines that
// compute hidden states. It knows tensors and token ids, never databases.
//
// # Concurrency
//
// Serve is called once for each slot, all slots at once; Describe may be
// called at any time.
package backend

import (
	"context"
	"errors"
	"fmt"
)

// Info is what a backend says of itself.
type Info struct {
	Engine        string // native, vllm, synthetic, worker:hf …
	Version       string
	Model         string // as the engine names it
	Hidden        int
	Layers        int   // decoder layers of the model
	Vocab         int   // 0 where the engine does not say
	Capture       []int // layer ids it will return, ascending; id k = residual stream after k layers
	DType         string
	LastPreNorm   bool // the last captured layer, where it is the model's last, is before the final norm
	MaxTokens     int  // longest sample it takes; 0: no bound of its own
	Slots         int  // engines that work independently (endpoints, workers); at least 1
	MaxInFlight   int  // samples a slot works on at once; 0: as many as memory allows
	Deterministic bool // the same ids always give the same bytes
	Synthetic     bool // the values are made up
	RowRanges     bool // long samples arrive as several chunks
}

// Request asks for the states of one sample.
type Request struct {
	ID     uint64 // the caller's; echoed in every chunk
	Tokens []uint32
	Name   string // of the sample, for logs; may be empty
}

// Label names the request for people.
func (r Request) Label() string {
	if r.Name != "" {
		return r.Name
	}
	return fmt.Sprintf("request %d", r.ID)
}

// Chunk answers for rows [First, First+Rows) of a request. Data is row-major
// [Rows, len(Info.Capture), Hidden] in Info.DType, little endian, and belongs
// to the backend again once emit returns. The chunks of one request arrive in
// row order; those of different requests may mix.
type Chunk struct {
	ID    uint64
	First int
	Rows  int
	Data  []byte
	// Echo is the token ids the engine says it used, on a request's first
	// chunk, where the engine says so; nil elsewhere.
	Echo []uint32
	// Err ends the request without (further) rows.
	Err error
}

// UntilError returns an emit that calls emit until it fails, and from then on
// returns its error: what other goroutines of a Serve still hand on after that
// is not the caller's any more. Calls must not overlap.
func UntilError(emit func(Chunk) error) func(Chunk) error {
	var failed error
	return func(c Chunk) error {
		if failed == nil {
			failed = emit(c)
		}
		return failed
	}
}

// Backend computes hidden states.
type Backend interface {
	// Describe asks the engine what it is. It fails with ErrUnavailable when
	// the engine does not answer.
	Describe(ctx context.Context) (Info, error)
	// Serve answers the requests from in on one slot until in is closed and all
	// are answered, and then returns nil. It calls emit from one goroutine at a
	// time; an error of emit ends Serve with that error. When Serve fails, the
	// requests not fully answered are the caller's to hand out again. Serve
	// must keep receiving from in while earlier requests are still computed, up
	// to its own bound.
	Serve(ctx context.Context, slot int, in <-chan Request, emit func(Chunk) error) error
	Close() error
}

// ErrUnavailable marks an engine that cannot be reached or died; trying again
// may help.
var ErrUnavailable = errors.New("engine unavailable")

// ErrReconnect ends a Serve whose connection to the engine was gone when the next
// request came: nobody is to blame, but what answers from now on may be another
// engine, and is to be looked at first.
var ErrReconnect = errors.New("the connection is gone, and the engine may be another one now")

// NoBlame marks the end of a Serve that no request in flight has to do with: the
// engine answers that it is overloaded, refuses the caller, or is set up for
// something else.
func NoBlame(err error) error { return &noBlame{err} }

// IsNoBlame reports whether err was marked.
func IsNoBlame(err error) bool {
	var n *noBlame
	return errors.As(err, &n)
}

type noBlame struct{ error }

func (n *noBlame) Unwrap() error { return n.error }

// Namer is a backend that can tell people which engine a slot is.
type Namer interface{ Name(slot int) string }

// SampleError says that one sample failed while the engine goes on.
type SampleError struct {
	Code      string // too_long, bad_token, oom, internal
	Permanent bool   // trying again cannot help
	Err       error
}

func (e *SampleError) Error() string { return fmt.Sprintf("%s: %v", e.Code, e.Err) }

// Unwrap returns the cause.
func (e *SampleError) Unwrap() error { return e.Err }
