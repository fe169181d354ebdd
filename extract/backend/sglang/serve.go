package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// serving is one call of Serve.
type serving struct {
	*link.Session
	b    *Backend
	end  *link.Endpoint
	http *link.Client
}

const generate = "/generate"

// Serve implements backend.Backend.
func (b *Backend) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	if slot < 0 || slot >= len(b.ends) {
		return fmt.Errorf("sglang: slot %d of %d", slot, len(b.ends))
	}
	hc := link.New(b.o.Concurrency)
	defer hc.Close()
	if _, err := b.probe(ctx, hc, slot); err != nil {
		return err
	}
	s := &serving{b: b, end: b.ends[slot], http: hc}
	s.Session = s.end.Open(ctx, link.Limits{
		Requests: b.o.Concurrency, Bytes: maxText, Size: func(tokens int) int64 { return int64(tokens) * int64(b.o.Hidden) * valueText },
		Timeout: b.o.Timeout, Attempts: b.o.Attempts, Backoff: b.o.Backoff,
	}, emit)
	return s.Run(in, s.answer)
}

type request struct {
	IDs      []uint32       `json:"input_ids"`
	Sampling map[string]int `json:"sampling_params"`
	States   bool           `json:"return_hidden_states"`
	// ExtraKey parts the prefix cache: with one of its own a request finds
	// nothing there, and so gets all of its rows. Old servers ignore it.
	ExtraKey string `json:"extra_key"`
}

type answer struct {
	Meta struct {
		Prompt int               `json:"prompt_tokens"`
		Cached int               `json:"cached_tokens"`
		States []json.RawMessage `json:"hidden_states"`
	} `json:"meta_info"`
}

// answer answers one request with one chunk. An error that is not the sample's
// ends Serve.
func (s *serving) answer(rq backend.Request) error {
	if err := link.Refuse(rq.Tokens, s.b.o.Vocab); err != nil {
		return err
	}
	var a answer
	err := s.Ask(link.Question{
		Path:    generate,
		Send:    func(ctx context.Context) (err error) { a, err = s.generate(ctx, rq.Tokens); return err },
		Refused: s.classify,
		Failed:  func(err error) error { return s.end.Unavailable(generate, err) },
	})
	if err != nil {
		return err
	}
	data, err := s.states(rq.Tokens, a)
	if err != nil {
		return err
	}
	return s.Give(backend.Chunk{ID: rq.ID, Rows: len(rq.Tokens), Data: data})
}

// generate posts a request once. An answer that lacks the rows of tokens that the
// prefix cache had is of no use: the cache is dropped, and the server asked again.
func (s *serving) generate(ctx context.Context, ids []uint32) (a answer, err error) {
	key := fmt.Sprintf("%s-%d", s.b.tag, s.b.count.Add(1))
	body, err := json.Marshal(request{IDs: ids, Sampling: map[string]int{"temperature": 0, "max_new_tokens": 1}, States: true, ExtraKey: key})
	if err != nil {
		return a, err
	}
	err = s.end.Do(ctx, s.http, link.Call{Method: http.MethodPost, Path: generate, ID: key, Body: body, Into: &a})
	if err == nil && a.Meta.Cached > 0 {
		s.flush(ctx)
		err = link.Again(fmt.Errorf("%d of %d tokens came from the prefix cache, without states: start the server with --disable-radix-cache", a.Meta.Cached, len(ids)))
	}
	return a, err
}

// flush asks the server to drop its prefix cache, which has no states. It may
// refuse while it is busy: whether it did shows at the next attempt.
func (s *serving) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, link.Probing)
	defer cancel()
	_ = s.end.Do(ctx, s.http, link.Call{Method: http.MethodPost, Path: "/flush_cache"})
}

// classify says whose fault a lasting refusal is.
func (s *serving) classify(e *link.StatusError) error {
	switch {
	case strings.Contains(e.Message, "return-hidden-states"), e.Code == http.StatusUnauthorized, e.Code == http.StatusForbidden, e.Code == http.StatusNotFound:
		return s.end.Unavailable(generate, e)
	case strings.Contains(e.Message, "maximum context length"):
		return &backend.SampleError{Code: "too_long", Permanent: true, Err: e}
	}
	return &backend.SampleError{Code: "internal", Permanent: true, Err: e}
}

// states takes the rows of the prompt out of an answer.
func (s *serving) states(ids []uint32, a answer) ([]byte, error) {
	if len(a.Meta.States) == 0 {
		return nil, s.end.Unavailable(generate, errors.New("the answer has no hidden_states: start the server with --enable-return-hidden-states"))
	}
	out, err := decode(a.Meta.States[0], len(ids), s.b.o.Hidden)
	var width *widthError
	switch {
	case errors.As(err, &width), errors.Is(err, errNotBF16):
		return nil, s.end.Unavailable(generate, err)
	case err != nil:
		return nil, &backend.SampleError{Code: "internal", Err: err}
	}
	return out, nil
}
