package enginetest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"time"
)

// SGLang is a stand-in for an SGLang server that returns hidden states. Fault
// is one of disabled, cached (prefix cache: fewer rows), wide (an EAGLE-3 draft
// is loaded: three layers instead of the last), short, null (a value that is
// not finite), long (the context is too short), 500, close.
type SGLang struct {
	Hidden, Layer, MaxLen int
	Fault                 string

	srv *httptest.Server
}

// Start listens; Close ends it.
func (s *SGLang) Start() string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {})
	mux.HandleFunc("GET /model_info", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]any{"model_path": "target", "served_model_name": "target", "is_generation": true, "weight_version": "default"})
	})
	mux.HandleFunc("POST /generate", s.generate)
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
	rows := s.rows(q.IDs)
	meta := map[string]any{"id": "1", "prompt_tokens": len(q.IDs), "completion_tokens": 1, "cached_tokens": 0}
	switch s.Fault {
	case "cached":
		meta["cached_tokens"] = 1
		rows = rows[1:]
	case "short":
		rows = rows[1:]
	case "null":
		rows[0][0] = nil
	case "wide":
		for i := range rows {
			rows[i] = append(append(rows[i], rows[i]...), rows[i]...)
		}
	}
	if q.States {
		meta["hidden_states"] = []any{rows}
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
