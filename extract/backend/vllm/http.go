package vllm

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/link"
)

const (
	maxReply    = 256 << 20 // of an answer, which repeats the prompt's ids
	completions = "/v1/completions"
)

// get asks an endpoint for what it says at path.
func (b *Backend) get(ctx context.Context, hc *link.Client, slot int, path string, into any) error {
	return b.ends[slot].Do(ctx, hc, link.Call{Method: http.MethodGet, Path: path, Into: into, Most: maxReply})
}

// discover asks an endpoint what it serves.
func (b *Backend) discover(ctx context.Context, hc *link.Client, slot int) (served, error) {
	ctx, cancel := context.WithTimeout(ctx, link.Probing)
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
	if err := b.get(ctx, hc, slot, "/v1/models", &list); err != nil {
		return served{}, b.ends[slot].Unavailable("/v1/models", err)
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
	if err := b.get(ctx, hc, slot, "/version", &v); err != nil {
		return m, b.ends[slot].Unavailable("/version", err)
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
	if err := b.get(ctx, hc, slot, "/health", nil); err != nil {
		return b.ends[slot].Unavailable("/health", err)
	}
	return nil
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
func (b *Backend) classify(slot int, e *link.StatusError) error {
	switch e.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		return b.ends[slot].Unavailable(completions, e)
	}
	code := "internal"
	switch {
	case strings.Contains(e.Message, "maximum context length"):
		code = "too_long"
	case strings.Contains(e.Message, "out of vocabulary"):
		code = "bad_token"
	}
	return &backend.SampleError{Code: code, Permanent: true, Err: e}
}
