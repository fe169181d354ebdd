package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"eaglebatch/extract/backend"
)

// Fault names a misbehaviour that a backend's author knows how to provoke.
type Fault string

// The faults of the suite.
const (
	// Dies: the engine dies while it works on its third request.
	Dies Fault = "dies"
	// Refuses: the engine refuses the third request and goes on.
	Refuses Fault = "refuses"
	// Down: the engine does not answer at all.
	Down Fault = "down"
)

// Factory makes backends to be tested. New gives a fresh one each time and
// registers its cleanup with t, Close apart.
type Factory struct {
	New func(t *testing.T) backend.Backend
	// WithCapture gives a backend of the same model that captures these layers;
	// nil where the layers are fixed.
	WithCapture func(t *testing.T, layers []int) backend.Backend
	// Faulty gives a backend with the fault, nil where the author cannot
	// provoke it; the suite then says what it did not test.
	Faulty func(t *testing.T, f Fault) backend.Backend
	// Tokens returns a sample of n valid token ids, the same for the same
	// arguments, different for different k. Nil: ids below Info.Vocab, or 1000.
	Tokens func(k, n int) []uint32
	// Long is the length of the long sample; 0: 600.
	Long int
	// MaxChunk bounds the bytes of one chunk where the backend sends row
	// ranges; 0: 64 MiB.
	MaxChunk int
	// Cosine is the least agreement of a row computed twice in different
	// company; 0: 0.999. Deterministic backends must agree to the byte when
	// the whole request is the same.
	Cosine float64
	// Timeout bounds every wait; 0: two minutes.
	Timeout time.Duration
}

// Run runs the suite.
func Run(t *testing.T, f Factory) {
	if f.Long == 0 {
		f.Long = 600
	}
	if f.MaxChunk == 0 {
		f.MaxChunk = 64 << 20
	}
	if f.Cosine == 0 {
		f.Cosine = 0.999
	}
	if f.Timeout == 0 {
		f.Timeout = 2 * time.Minute
	}
	tests := []struct {
		name string
		run  func(*suite)
	}{
		{"describe", (*suite).describe},
		{"shapes and echo", (*suite).shapes},
		{"again", (*suite).again},
		{"prefix", (*suite).prefix},
		{"layers", (*suite).layers},
		{"row ranges", (*suite).rowRanges},
		{"slots", (*suite).slots},
		{"keeps receiving", (*suite).keepsReceiving},
		{"closed at once", (*suite).closedAtOnce},
		{"cancel", (*suite).cancelled},
		{"emit fails", (*suite).emitFails},
		{"bad token", (*suite).badToken},
		{"too long", (*suite).tooLong},
		{"dies", (*suite).dies},
		{"refuses", (*suite).refuses},
		{"down", (*suite).down},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), f.Timeout)
			defer cancel()
			c.run(&suite{T: t, f: f, ctx: ctx})
		})
	}
}

type suite struct {
	*testing.T
	f   Factory
	ctx context.Context
}

// open makes a backend, closed at the test's end, and describes it.
func (s *suite) open() (backend.Backend, backend.Info) {
	s.Helper()
	b := s.f.New(s.T)
	return b, s.info(b)
}

func (s *suite) info(b backend.Backend) backend.Info {
	s.Helper()
	s.Cleanup(func() {
		if err := b.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	info, err := b.Describe(s.ctx)
	if err != nil {
		s.Fatalf("describe: %v", err)
	}
	return info
}

func (s *suite) faulty(f Fault) backend.Backend {
	s.Helper()
	if s.f.Faulty != nil {
		if b := s.f.Faulty(s.T, f); b != nil {
			return b
		}
	}
	s.Skipf("the backend's author cannot provoke %q", f)
	return nil
}

func (s *suite) tokens(info backend.Info, k, n int) []uint32 {
	if s.f.Tokens != nil {
		return s.f.Tokens(k, n)
	}
	vocab := info.Vocab
	if vocab == 0 {
		vocab = 1000
	}
	ids := make([]uint32, n)
	x := uint64(k)*0x9e3779b97f4a7c15 + 1
	for i := range ids {
		x = x*6364136223846793005 + 1442695040888963407
		ids[i] = uint32((x >> 33) % uint64(vocab))
	}
	return ids
}

// answer is all that came back for one request.
type answer struct {
	rows   int
	data   []byte
	echo   []uint32
	err    error
	chunks int
}

func size(dtype string) int {
	switch dtype {
	case "bf16", "fp16":
		return 2
	case "fp32":
		return 4
	}
	return 0
}

func tokenBytes(i backend.Info) int { return len(i.Capture) * i.Hidden * size(i.DType) }

// collect checks each chunk's form and gathers the answers. It is used from
// emit, hence from one goroutine at a time.
type collector struct {
	info    backend.Info
	want    map[uint64]int // rows
	answers map[uint64]*answer
	done    int
	max     int // bytes of the largest chunk
	ended   bool
}

func newCollector(info backend.Info, rqs []backend.Request) *collector {
	c := &collector{info: info, want: map[uint64]int{}, answers: map[uint64]*answer{}}
	for _, rq := range rqs {
		c.want[rq.ID] = len(rq.Tokens)
		c.answers[rq.ID] = &answer{}
	}
	return c
}

func (c *collector) emit(ch backend.Chunk) error {
	a := c.answers[ch.ID]
	switch {
	case c.ended:
		return errors.New("a chunk after Serve returned")
	case a == nil:
		return fmt.Errorf("a chunk for unknown request %d", ch.ID)
	case a.err != nil || a.rows == c.want[ch.ID]:
		return fmt.Errorf("request %d: a chunk after its end", ch.ID)
	case ch.Err != nil:
		a.err = ch.Err
		c.done++
		return nil
	case ch.Rows <= 0 || ch.First != a.rows || ch.First+ch.Rows > c.want[ch.ID]:
		return fmt.Errorf("request %d: rows [%d,+%d) after %d of %d", ch.ID, ch.First, ch.Rows, a.rows, c.want[ch.ID])
	case len(ch.Data) != ch.Rows*tokenBytes(c.info):
		return fmt.Errorf("request %d: %d bytes for %d rows of %d", ch.ID, len(ch.Data), ch.Rows, tokenBytes(c.info))
	case !c.info.RowRanges && ch.Rows != c.want[ch.ID]:
		return fmt.Errorf("request %d: several chunks from a backend without row ranges", ch.ID)
	}
	if ch.Echo != nil && a.rows > 0 {
		return fmt.Errorf("request %d: the echo comes with the first chunk, not at row %d", ch.ID, ch.First)
	}
	if a.rows == 0 {
		a.echo = slices.Clone(ch.Echo)
	}
	a.data = append(a.data, ch.Data...)
	a.rows += ch.Rows
	a.chunks++
	c.max = max(c.max, len(ch.Data))
	if a.rows == c.want[ch.ID] {
		c.done++
	}
	return nil
}

// serve sends rqs to one slot, closes in and waits for Serve.
func (s *suite) serve(b backend.Backend, info backend.Info, slot int, rqs []backend.Request) (*collector, error) {
	c := newCollector(info, rqs)
	in := make(chan backend.Request)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer close(in)
		for _, rq := range rqs {
			select {
			case in <- rq:
			case <-ctx.Done():
				return
			}
		}
	}()
	err := b.Serve(ctx, slot, in, c.emit)
	cancel()
	<-sent
	c.ended = true
	return c, err
}

// mustServe is serve where nothing may go wrong.
func (s *suite) mustServe(b backend.Backend, info backend.Info, slot int, rqs []backend.Request) *collector {
	s.Helper()
	c, err := s.serve(b, info, slot, rqs)
	if err != nil {
		s.Fatalf("serve: %v", err)
	}
	for _, rq := range rqs {
		a := c.answers[rq.ID]
		if a.err != nil {
			s.Fatalf("request %d: %v", rq.ID, a.err)
		}
		if a.rows != len(rq.Tokens) {
			s.Fatalf("request %d: %d rows of %d", rq.ID, a.rows, len(rq.Tokens))
		}
		if a.echo != nil && !slices.Equal(a.echo, rq.Tokens) {
			s.Fatalf("request %d: echoes other token ids than were sent", rq.ID)
		}
	}
	return c
}

func (s *suite) requests(info backend.Info, lengths ...int) []backend.Request {
	rqs := make([]backend.Request, len(lengths))
	for i, n := range lengths {
		rqs[i] = backend.Request{ID: uint64(100 + i), Tokens: s.tokens(info, i, n)}
	}
	return rqs
}
