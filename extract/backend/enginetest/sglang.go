package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// SGLang is a stand-in for an SGLang server that returns hidden states. Fault
// is one of disabled, cached (prefix cache: fewer rows, always), wide (an EAGLE-3
// draft is loaded: three layers instead of the last), short, null (a value that
// is not finite), fp32 (values that are no bf16 numbers), row (that of a generated
// token alone), long (the context is too short), 500, close.
type SGLang struct {
	Hidden, Layer, MaxLen int
	Fault                 string
	// Radix gives it a prefix cache: rows of tokens that it holds are not
	// computed. NoKeys makes it one that does not know extra_key.
	Radix, NoKeys bool

	srv *httptest.Server

	mu    sync.Mutex
	cache map[string][][]uint32 // by key
	n     int
}

// Calls returns the number of generations asked for.
func (s *SGLang) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// cached returns how many tokens of ids the cache holds, and adds ids to it.
func (s *SGLang) cached(key string, ids []uint32) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if !s.Radix {
		return 0
	}
	if s.NoKeys {
		key = ""
	}
	for _, old := range s.cache[key] {
		same := 0
		for same < min(len(old), len(ids)-1) && old[same] == ids[same] {
			same++ // the last token is always computed
		}
		n = max(n, same)
	}
	if s.cache == nil {
		s.cache = map[string][][]uint32{}
	}
	s.cache[key] = append(s.cache[key], ids)
	return n
}

func (s *SGLang) flush(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	s.cache = nil
	s.mu.Unlock()
	fmt.Fprint(w, "Cache flushed.\n")
}

// Start listens; Close ends it.
func (s *SGLang) Start() string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {})
	mux.HandleFunc("GET /model_info", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"model_path": "target", "served_model_name": "target", "is_generation": true, "weight_version": "default"})
	})
	mux.HandleFunc("POST /generate", s.generate)
	mux.HandleFunc("POST /flush_cache", s.flush)
	s.srv = httptest.NewUnstartedServer(mux)
	s.srv.Config.IdleTimeout = 5 * time.Second
	s.srv.Start()
	return s.srv.URL
}

// Close ends the server.
func (s *SGLang) Close() {
	s.srv.CloseClientConnections()
	s.srv.Close()
}

func (s *SGLang) generate(w http.ResponseWriter, r *http.Request) {
	var q struct {
		IDs    []uint32 `json:"input_ids"`
		States bool     `json:"return_hidden_states"`
		Key    string   `json:"extra_key"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		reply(w, 400, map[string]any{"object": "error", "message": err.Error(), "code": 400})
		return
	}
	fail := func(code int, message string) {
		reply(w, code, map[string]any{"error": map[string]string{"message": message}})
	}
	switch {
	case s.Fault == "disabled":
		fail(400, "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag.")
		return
	case s.Fault == "long" || len(q.IDs) >= s.MaxLen:
		fail(400, fmt.Sprintf("Requested token count exceeds the model's maximum context length of %d tokens.", s.MaxLen))
		return
	case s.Fault == "500":
		fail(500, "scheduler died")
		return
	case s.Fault == "close":
		panic(http.ErrAbortHandler)
	}
	cached := s.cached(q.Key, q.IDs)
	rows := s.rows(q.IDs)[cached:]
	meta := map[string]any{"id": "1", "prompt_tokens": len(q.IDs), "completion_tokens": 1, "cached_tokens": cached}
	switch s.Fault {
	case "cached":
		meta["cached_tokens"] = 1
		rows = rows[1:]
	case "short":
		rows = rows[1:]
	case "null":
		rows[0][0] = nil
	case "fp32":
		rows[0][0] = 0.1
	case "wide":
		for i := range rows {
			rows[i] = append(append(rows[i], rows[i]...), rows[i]...)
		}
	}
	if q.States {
		meta["hidden_states"] = []any{rows}
	}
	if s.Fault == "row" {
		meta["hidden_states"] = []any{rows[0]}
	}
	reply(w, 200, map[string]any{"text": " x", "output_ids": []int{7}, "meta_info": meta})
}

func (s *SGLang) rows(ids []uint32) [][]any {
	data := Rows(ids, []int{s.Layer}, s.Hidden)
	out := make([][]any, len(ids))
	for t := range out {
		for d := range s.Hidden {
			bits := binary.LittleEndian.Uint16(data[2*(t*s.Hidden+d):])
			out[t] = append(out[t], math.Float32frombits(uint32(bits)<<16))
		}
	}
	return out
}
