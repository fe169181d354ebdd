package backendtest

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"eaglebatch/extract/backend"
)

func (s *suite) describe() {
	_, i := s.open()
	if i.Engine == "" || i.Version == "" {
		s.Errorf("engine %q version %q: both must be told", i.Engine, i.Version)
	}
	if i.Hidden <= 0 || i.Layers <= 0 || i.Slots < 1 || size(i.DType) == 0 {
		s.Errorf("hidden %d, layers %d, slots %d, dtype %q", i.Hidden, i.Layers, i.Slots, i.DType)
	}
	if len(i.Capture) == 0 || !slices.IsSorted(i.Capture) || i.Capture[0] < 0 || i.Capture[len(i.Capture)-1] > i.Layers {
		s.Errorf("capture %v: want ascending ids between 0 and %d", i.Capture, i.Layers)
	}
	if len(slices.Compact(slices.Clone(i.Capture))) != len(i.Capture) {
		s.Errorf("capture %v: a layer twice", i.Capture)
	}
}

func (s *suite) shapes() {
	b, info := s.open()
	rqs := s.requests(info, 1, 2, 17, 64, 3, 1, 129, 40)
	c := s.mustServe(b, info, 0, rqs)
	row := info.Hidden * size(info.DType)
	for _, rq := range rqs {
		data := c.answers[rq.ID].data
		for r := 0; r*row < len(data); r++ {
			if one := data[r*row:][:row]; !(cosine(one, one, info.DType, info.Hidden) > 0.99) {
				s.Fatalf("request %d: token %d layer %d: zero or not finite", rq.ID, r/len(info.Capture), info.Capture[r%len(info.Capture)])
			}
		}
	}
}

// again asks for the same samples twice, in another order.
func (s *suite) again() {
	b, info := s.open()
	rqs := s.requests(info, 30, 31, 32, 33)
	first := s.mustServe(b, info, 0, rqs)
	back := slices.Clone(rqs)
	slices.Reverse(back)
	second := s.mustServe(b, info, 0, back)
	for _, rq := range rqs {
		x, y := first.answers[rq.ID].data, second.answers[rq.ID].data
		if info.Deterministic && !bytes.Equal(x, y) {
			s.Errorf("request %d: a deterministic engine answers differently the second time", rq.ID)
		}
		s.agree(info, x, y, "the second time")
	}
}

// agree holds every row of got to the same row of want.
func (s *suite) agree(info backend.Info, want, got []byte, when string) {
	s.Helper()
	row := info.Hidden * size(info.DType)
	for r := 0; r*row < min(len(want), len(got)); r++ {
		if c := cosine(want[r*row:], got[r*row:], info.DType, info.Hidden); !(c >= s.f.Cosine) {
			s.Fatalf("token %d layer %d: cosine %.6f %s", r/len(info.Capture), info.Capture[r%len(info.Capture)], c, when)
		}
	}
}

// prefix: the rows of a sample's prefix are those of the sample, and a token
// changed at the end changes the last row only.
func (s *suite) prefix() {
	b, info := s.open()
	ids := s.tokens(info, 1, 48)
	other := slices.Clone(ids)
	other[len(other)-1] = ids[0]
	if other[len(other)-1] == ids[len(ids)-1] {
		other[len(other)-1] = ids[1]
	}
	c := s.mustServe(b, info, 0, []backend.Request{{ID: 1, Tokens: ids}, {ID: 2, Tokens: ids[:19]}, {ID: 3, Tokens: other}})
	full, tb := c.answers[1].data, tokenBytes(info)
	s.agree(info, full[:19*tb], c.answers[2].data, "in a prefix")
	s.agree(info, full[:47*tb], c.answers[3].data[:47*tb], "before a changed token")
	if bytes.Equal(full[47*tb:], c.answers[3].data[47*tb:]) {
		s.Error("another last token gives the same last row")
	}
}

func (s *suite) layers() {
	b, info := s.open()
	rq := s.requests(info, 20)
	full := s.mustServe(b, info, 0, rq).answers[rq[0].ID].data
	row, tb := info.Hidden*size(info.DType), tokenBytes(info)
	for l := 1; l < len(info.Capture); l++ {
		last := full[19*tb:]
		if bytes.Equal(last[l*row:][:row], last[(l-1)*row:][:row]) {
			s.Errorf("layers %d and %d are the same", info.Capture[l-1], info.Capture[l])
		}
	}
	if s.f.WithCapture == nil {
		s.Log("the layers of this backend are fixed: each is compared with its neighbour only")
		return
	}
	for l, id := range info.Capture {
		one := s.f.WithCapture(s.T, []int{id})
		oi := s.info(one)
		got := s.mustServe(one, oi, 0, rq).answers[rq[0].ID].data
		want := make([]byte, 0, len(got))
		for t := range 20 {
			want = append(want, full[t*tb+l*row:][:row]...)
		}
		s.agree(oi, want, got, "captured alone")
	}
}

// rowRanges: a long sample arrives in bounded pieces, which join to the whole.
func (s *suite) rowRanges() {
	b, info := s.open()
	if !info.RowRanges {
		s.Skip("the backend does not send row ranges")
	}
	n := s.f.Long
	if info.MaxTokens > 0 {
		n = min(n, info.MaxTokens)
	}
	rqs := s.requests(info, 5, n, 6)
	c := s.mustServe(b, info, 0, rqs)
	if c.max > s.f.MaxChunk {
		s.Errorf("a chunk of %d bytes, at most %d are allowed", c.max, s.f.MaxChunk)
	}
	half := s.mustServe(b, info, 0, []backend.Request{{ID: 9, Tokens: rqs[1].Tokens[:n/2]}})
	s.agree(info, c.answers[101].data[:n/2*tokenBytes(info)], half.answers[9].data, "in a long sample's first half")
}

// slots runs all slots at once.
func (s *suite) slots() {
	b, info := s.open()
	rqs := s.requests(info, 9, 21, 33, 8, 50, 2, 7, 16, 12, 40)
	want := s.mustServe(b, info, 0, rqs)
	var wg sync.WaitGroup
	got, errs := make([]*collector, info.Slots), make([]error, info.Slots)
	for i := range info.Slots {
		wg.Go(func() { got[i], errs[i] = s.serve(b, info, i, rqs) })
	}
	wg.Wait()
	for i := range info.Slots {
		if errs[i] != nil {
			s.Fatalf("slot %d: %v", i, errs[i])
		}
		for _, rq := range rqs {
			if a := got[i].answers[rq.ID]; a.rows != len(rq.Tokens) {
				s.Fatalf("slot %d request %d: %d rows of %d (%v)", i, rq.ID, a.rows, len(rq.Tokens), a.err)
			}
			s.agree(info, want.answers[rq.ID].data, got[i].answers[rq.ID].data, "beside other slots")
		}
	}
}

// keepsReceiving: while an answer is held up in emit, Serve takes the next
// request.
func (s *suite) keepsReceiving() {
	b, info := s.open()
	if info.MaxInFlight == 1 {
		s.Skip("the backend works on one sample at a time")
	}
	rqs := s.requests(info, 12, 12, 12)
	c := newCollector(info, rqs)
	in, second := make(chan backend.Request), make(chan struct{})
	go func() {
		defer close(in)
		for i, rq := range rqs {
			select {
			case in <- rq:
			case <-s.ctx.Done():
				return
			}
			if i == 1 {
				close(second)
			}
		}
	}()
	err := b.Serve(s.ctx, 0, in, func(ch backend.Chunk) error {
		select {
		case <-second:
			return c.emit(ch)
		case <-s.ctx.Done():
			return errors.New("no second request was taken while the first answer waited")
		}
	})
	if err != nil || c.done != len(rqs) {
		s.Fatalf("serve: %v; %d of %d answered", err, c.done, len(rqs))
	}
}

func (s *suite) closedAtOnce() {
	b, info := s.open()
	c := s.mustServe(b, info, 0, nil)
	if c.done != 0 {
		s.Errorf("%d answers to no requests", c.done)
	}
	s.mustServe(b, info, 0, s.requests(info, 4)) // and the slot serves again
}

// cancelled: Serve ends soon after its context does, emits nothing afterwards,
// leaves no goroutine behind, and the slot serves again.
func (s *suite) cancelled() {
	b, info := s.open()
	s.mustServe(b, info, 0, s.requests(info, 4)) // whatever starts once has started
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	rqs := s.requests(info, 20, 21, 22, 23)
	c := newCollector(info, rqs)
	in := make(chan backend.Request) // never closed
	go func() {
		for _, rq := range rqs {
			select {
			case in <- rq:
			case <-ctx.Done():
				return
			}
		}
	}()
	ended := make(chan error, 1)
	go func() {
		ended <- b.Serve(ctx, 0, in, func(ch backend.Chunk) error {
			cancel()
			return c.emit(ch)
		})
	}()
	select {
	case err := <-ended:
		if err == nil {
			s.Error("a cancelled Serve returned nil")
		}
	case <-s.ctx.Done():
		s.Fatal("Serve did not end after its context")
	}
	c.ended = true
	for runtime.NumGoroutine() > before {
		if s.ctx.Err() != nil {
			s.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.mustServe(b, info, 0, s.requests(info, 4))
}

func (s *suite) emitFails() {
	b, info := s.open()
	stop := errors.New("the caller has had enough")
	in := make(chan backend.Request, 3)
	for _, rq := range s.requests(info, 20, 21, 22) {
		in <- rq
	}
	n := 0
	err := b.Serve(s.ctx, 0, in, func(backend.Chunk) error {
		n++
		time.Sleep(50 * time.Millisecond) // the other answers are ready by then, and wait
		return stop
	})
	if !errors.Is(err, stop) {
		s.Errorf("serve: %v, want the error of emit", err)
	}
	if n != 1 {
		s.Errorf("emit was called %d times after it failed", n-1)
	}
}

// badToken: an id beyond the vocabulary is one sample's failure.
func (s *suite) badToken() {
	b, info := s.open()
	if info.Vocab == 0 {
		s.Skip("the engine does not tell its vocabulary")
	}
	rqs := s.requests(info, 6, 7, 8)
	rqs[1].Tokens[3] = uint32(info.Vocab)
	s.onlyFails(b, info, rqs, 1)
}

func (s *suite) tooLong() {
	b, info := s.open()
	if info.MaxTokens == 0 {
		s.Skip("the backend has no bound of its own")
	}
	s.onlyFails(b, info, s.requests(info, 6, info.MaxTokens+1, 8), 1)
}

// onlyFails wants a SampleError for request i and answers to the others.
func (s *suite) onlyFails(b backend.Backend, info backend.Info, rqs []backend.Request, i int) {
	s.Helper()
	c, err := s.serve(b, info, 0, rqs)
	if err != nil {
		s.Fatalf("serve: %v", err)
	}
	for k, rq := range rqs {
		a := c.answers[rq.ID]
		if k != i {
			if a.err != nil || a.rows != len(rq.Tokens) {
				s.Errorf("request %d: %d rows, %v", rq.ID, a.rows, a.err)
			}
			continue
		}
		var se *backend.SampleError
		if !errors.As(a.err, &se) || se.Code == "" {
			s.Errorf("request %d: %v, want a SampleError with a code", rq.ID, a.err)
		}
	}
}

func (s *suite) dies() {
	b := s.faulty(Dies)
	info := s.info(b)
	rqs := s.requests(info, 10, 11, 12, 13, 14)
	c, err := s.serve(b, info, 0, rqs)
	if !errors.Is(err, backend.ErrUnavailable) {
		s.Fatalf("serve: %v, want ErrUnavailable", err)
	}
	var left []backend.Request
	for _, rq := range rqs {
		if a := c.answers[rq.ID]; a.err != nil {
			s.Errorf("request %d: %v: a dead engine is no sample's failure", rq.ID, a.err)
		} else if a.rows < len(rq.Tokens) {
			left = append(left, rq)
		}
	}
	if len(left) == 0 {
		s.Fatal("everything was answered: the engine did not die")
	}
	s.mustServe(b, info, 0, left) // the engine comes back
}

func (s *suite) refuses() {
	b := s.faulty(Refuses)
	info := s.info(b)
	s.onlyFails(b, info, s.requests(info, 10, 11, 12, 13, 14), 2)
}

func (s *suite) down() {
	b := s.faulty(Down)
	s.Cleanup(func() {
		if err := b.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	if _, err := b.Describe(s.ctx); !errors.Is(err, backend.ErrUnavailable) {
		s.Errorf("describe: %v, want ErrUnavailable", err)
	}
	in := make(chan backend.Request)
	close(in)
	err := b.Serve(s.ctx, 0, in, func(backend.Chunk) error { return nil })
	if err != nil && !errors.Is(err, backend.ErrUnavailable) {
		s.Errorf("serve: %v, want ErrUnavailable", err)
	}
}
