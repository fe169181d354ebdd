package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

const (
	maxReply = 256 << 20 // of an answer, which repeats the prompt's ids
	probing  = 30 * time.Second
)

var errNoJSON = errors.New("an answer that is no JSON")

// statusError is an answer that is not 200.
type statusError struct {
	code    int
	message string
	after   time.Duration // Retry-After
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.code, e.message) }

// lasting reports whether the same request would be answered the same again.
func (e *statusError) lasting() bool {
	return e.code >= 400 && e.code < 500 && e.code != http.StatusRequestTimeout && e.code != http.StatusTooManyRequests
}

// do sends one request and decodes its answer into v, if it has a body.
func (b *Backend) do(ctx context.Context, hc *link.Client, slot int, method, path, id string, body []byte, v any) error {
	path, query, _ := strings.Cut(path, "?")
	u := b.urls[slot].JoinPath(path)
	u.RawQuery = query
	rq, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		rq.Header.Set("Content-Type", "application/json")
	}
	if id != "" {
		rq.Header.Set("X-Request-Id", id)
		// The transport may send it again on another connection where a kept one
		// turns out to be closed.
		rq.Header.Set("Idempotency-Key", id)
	}
	if b.o.APIKey != "" {
		rq.Header.Set("Authorization", "Bearer "+b.o.APIKey)
	}
	rs, err := hc.Do(rq)
	if err != nil {
		return err
	}
	defer rs.Body.Close()
	text, err := io.ReadAll(io.LimitReader(rs.Body, maxReply))
	if rs.StatusCode != http.StatusOK {
		return newStatusError(rs, text)
	}
	if err != nil {
		return err
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%w: %w", errNoJSON, err)
	}
	return nil
}

func newStatusError(rs *http.Response, text []byte) *statusError {
	e := &statusError{code: rs.StatusCode, message: strings.TrimSpace(string(text[:min(len(text), 300)]))}
	var m struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &m) == nil && m.Error.Message+m.Message != "" {
		e.message = m.Error.Message + m.Message
	}
	if e.message == "" {
		e.message = http.StatusText(rs.StatusCode)
	}
	if n, err := strconv.Atoi(rs.Header.Get("Retry-After")); err == nil && n > 0 {
		e.after = min(time.Duration(n)*time.Second, time.Minute)
	}
	return e
}

// severed reports whether a request failed so that another server may answer the
// next one: the connection broke, or a proxy lost its server.
func severed(err error) bool {
	var se *statusError
	if errors.As(err, &se) {
		return se.code >= http.StatusBadGateway && se.code <= http.StatusGatewayTimeout
	}
	return !errors.Is(err, errNoJSON) && link.Severed(err)
}

// discover asks an endpoint what it serves.
func (b *Backend) discover(ctx context.Context, hc *link.Client, slot int) (served, error) {
	ctx, cancel := context.WithTimeout(ctx, probing)
	defer cancel()
	if err := b.health(ctx, hc, slot); err != nil {
		return served{}, err
	}
	var list struct {
		Data []struct {
			ID        string `json:"id"`
			MaxLength int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := b.do(ctx, hc, slot, http.MethodGet, "/v1/models", "", nil, &list); err != nil {
		return served{}, b.endpointError(slot, "/v1/models", err)
	}
	var m served
	var ids []string
	for _, d := range list.Data {
		ids = append(ids, d.ID)
		if m.model == "" && (b.o.Model == "" || b.o.Model == d.ID) {
			m.model, m.maxLength = d.ID, d.MaxLength
		}
	}
	if m.model == "" {
		return m, fmt.Errorf("vllm: %s serves %q, not %q", b.Name(slot), ids, b.o.Model)
	}
	var v struct {
		Version string `json:"version"`
	}
	if err := b.do(ctx, hc, slot, http.MethodGet, "/version", "", nil, &v); err != nil {
		return m, b.endpointError(slot, "/version", err)
	}
	m.version = v.Version
	if m.version == "" {
		m.version = "unknown"
	}
	b.mu.Lock()
	b.models[slot] = m
	b.mu.Unlock()
	return m, nil
}

// health fails unless the endpoint says that it is well.
func (b *Backend) health(ctx context.Context, hc *link.Client, slot int) error {
	if err := b.do(ctx, hc, slot, http.MethodGet, "/health", "", nil, nil); err != nil {
		return b.endpointError(slot, "/health", err)
	}
	return nil
}

// endpointError is about an endpoint, not about a sample.
func (b *Backend) endpointError(slot int, what string, err error) error {
	var se *statusError
	if errors.As(err, &se) && (se.code == http.StatusUnauthorized || se.code == http.StatusForbidden) {
		return fmt.Errorf("vllm: %s: %s: %w: set extract.api_key_env or extract.api_key_file", b.Name(slot), what, err)
	}
	return fmt.Errorf("vllm: %s: %s: %w: %w", b.Name(slot), what, err, backend.ErrUnavailable)
}

// reply is what a completion answers, as far as it matters here.
type reply struct {
	Choices []struct {
		Prompt []uint32 `json:"prompt_token_ids"`
	} `json:"choices"`
	KV *struct {
		Path string `json:"hidden_states_path"`
	} `json:"kv_transfer_params"`
}

// prompt renders a request.
func prompt(model string, ids []uint32) []byte {
	name, err := json.Marshal(model)
	if err != nil {
		name = []byte(`""`) // a string always encodes
	}
	out := make([]byte, 0, 8*len(ids)+128)
	out = append(append(append(out, `{"model":`...), name...), `,"prompt":[`...)
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	return append(out, `],"max_tokens":1,"temperature":0,"return_token_ids":true}`...)
}

// classify turns a lasting refusal into the sample's failure, and what is the
// endpoint's fault (its key, its model's name) into the endpoint's.
func (b *Backend) classify(slot int, e *statusError) error {
	switch e.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		return b.endpointError(slot, "/v1/completions", e)
	}
	code := "internal"
	switch {
	case strings.Contains(e.message, "maximum context length"):
		code = "too_long"
	case strings.Contains(e.message, "out of vocabulary"):
		code = "bad_token"
	}
	return &backend.SampleError{Code: code, Permanent: true, Err: e}
}
