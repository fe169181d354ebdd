package sglang

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

// statusError is an answer that is not 200.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.code, e.message) }

func (b *Backend) do(ctx context.Context, hc *link.Client, slot int, method, path string, body []byte, v any) error {
	rq, err := http.NewRequestWithContext(ctx, method, b.urls[slot].JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		rq.Header.Set("Content-Type", "application/json")
	}
	if b.o.APIKey != "" {
		rq.Header.Set("Authorization", "Bearer "+b.o.APIKey)
	}
	rs, err := hc.Do(rq)
	if err != nil {
		return err
	}
	defer rs.Body.Close()
	if rs.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(rs.Body, 64<<10))
		if err != nil {
			return err
		}
		var m struct {
			Message string `json:"message"`
			Error   struct {
				Message string `json:"message"`
			} `json:"error"`
		}
		e := &statusError{rs.StatusCode, strings.TrimSpace(string(text[:min(len(text), 300)]))}
		if json.Unmarshal(text, &m) == nil && m.Message+m.Error.Message != "" {
			e.message = m.Message + m.Error.Message
		}
		return e
	}
	if v == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(rs.Body, 64<<10))
		return err
	}
	return json.NewDecoder(rs.Body).Decode(v)
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

// endpointError ends Serve; it is wrapped into a chunk on its way there.
type endpointError struct{ error }

// answer makes the one chunk that a request is answered with.
func (b *Backend) answer(ctx context.Context, hc *link.Client, slot int, rq backend.Request) backend.Chunk {
	c := backend.Chunk{ID: rq.ID, Rows: len(rq.Tokens)}
	if c.Err = b.refuse(rq.Tokens); c.Err == nil {
		c.Data, c.Err = b.ask(ctx, hc, slot, rq.Tokens)
	}
	return c
}

func (b *Backend) refuse(ids []uint32) error {
	if len(ids) == 0 {
		return &backend.SampleError{Code: "internal", Permanent: true, Err: errors.New("a sample without tokens")}
	}
	if v := b.o.Vocab; v > 0 {
		if i := slices.IndexFunc(ids, func(id uint32) bool { return int64(id) >= int64(v) }); i >= 0 {
			return &backend.SampleError{Code: "bad_token", Permanent: true, Err: fmt.Errorf("token %d at %d lies outside the vocabulary of %d", ids[i], i, v)}
		}
	}
	return nil
}

// ask posts a request until it is answered with all of its rows.
func (b *Backend) ask(ctx context.Context, hc *link.Client, slot int, ids []uint32) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		a, err := b.generate(ctx, hc, slot, ids)
		var se *statusError
		switch {
		case err == nil && a.Meta.Cached > 0 && attempt < b.o.Attempts:
			b.flush(ctx, hc, slot)
		case err == nil:
			return b.states(slot, ids, a)
		case ctx.Err() != nil:
			return nil, endpointError{context.Cause(ctx)}
		case errors.As(err, &se) && se.code >= 400 && se.code < 500 && se.code != http.StatusTooManyRequests && se.code != http.StatusRequestTimeout:
			return nil, b.classify(slot, se)
		case attempt >= b.o.Attempts, severed(err):
			return nil, endpointError{b.unavailable(slot, fmt.Errorf("/generate: %d attempts: the last: %w", attempt, err))}
		}
		d := b.o.Backoff << (attempt - 1)
		select {
		case <-ctx.Done():
			return nil, endpointError{context.Cause(ctx)}
		case <-time.After(d/2 + rand.N(d)):
		}
	}
}

// severed reports whether a request failed so that another server may answer the
// next one: the connection broke, or a proxy lost its server.
func severed(err error) bool {
	var se *statusError
	if errors.As(err, &se) {
		return se.code >= http.StatusBadGateway && se.code <= http.StatusGatewayTimeout
	}
	var syntax *json.SyntaxError
	return !errors.As(err, &syntax) && link.Severed(err)
}

// generate posts a request once.
func (b *Backend) generate(ctx context.Context, hc *link.Client, slot int, ids []uint32) (a answer, err error) {
	body, err := json.Marshal(request{
		IDs: ids, Sampling: map[string]int{"temperature": 0, "max_new_tokens": 1}, States: true,
		ExtraKey: fmt.Sprintf("%s-%d", b.tag, b.count.Add(1)),
	})
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.o.Timeout)
	defer cancel()
	return a, b.do(ctx, hc, slot, http.MethodPost, "/generate", body, &a)
}

// flush asks the server to drop its prefix cache, which has no states. It may
// refuse while it is busy: whether it did shows at the next attempt.
func (b *Backend) flush(ctx context.Context, hc *link.Client, slot int) {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	_ = b.do(ctx, hc, slot, http.MethodPost, "/flush_cache", nil, nil)
}

func (b *Backend) classify(slot int, se *statusError) error {
	switch {
	case strings.Contains(se.message, "return-hidden-states"), se.code == http.StatusUnauthorized, se.code == http.StatusForbidden, se.code == http.StatusNotFound:
		return endpointError{b.unavailable(slot, se)}
	case strings.Contains(se.message, "maximum context length"):
		return &backend.SampleError{Code: "too_long", Permanent: true, Err: se}
	}
	return &backend.SampleError{Code: "internal", Permanent: true, Err: se}
}

// states takes the rows of the prompt out of an answer.
func (b *Backend) states(slot int, ids []uint32, a answer) ([]byte, error) {
	if a.Meta.Cached > 0 {
		return nil, endpointError{b.unavailable(slot, fmt.Errorf("%d of %d tokens came from the prefix cache, without states: start the server with --disable-radix-cache", a.Meta.Cached, len(ids)))}
	}
	if len(a.Meta.States) == 0 {
		return nil, endpointError{b.unavailable(slot, errors.New("the answer has no hidden_states: start the server with --enable-return-hidden-states"))}
	}
	out, err := decode(a.Meta.States[0], len(ids), b.o.Hidden)
	var width *widthError
	switch {
	case errors.As(err, &width), errors.Is(err, errNotBF16):
		return nil, endpointError{b.unavailable(slot, err)}
	case err != nil:
		return nil, &backend.SampleError{Code: "internal", Err: err}
	}
	return out, nil
}
