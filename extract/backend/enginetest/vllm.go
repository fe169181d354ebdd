package enginetest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// VLLM is a stand-in for a vLLM server with the hidden-states connector.
// Fields are set before Start.
type VLLM struct {
	Dir    string // shared_storage_path
	Gen    int    // generation of the connector: 1 writes before it answers, 2 and 3 behind a lock; 0: 3
	Model  string
	Layers []int
	Hidden int
	Vocab  int
	MaxLen int // --max-model-len
	Key    string
	// Terse makes it one that does not tell its max_model_len.
	Terse bool
	Delay time.Duration // of a write
	// InPlace makes the writer one of before safetensors 0.8: the file has its
	// full size at once, and zeros.
	InPlace bool
	// Slow is added to every answer, by token.
	Slow time.Duration
	// Rate is how many tokens a second it computes, all requests together; 0: no
	// bound.
	Rate float64
	// Fill makes the states of a sample; nil: Rows.
	Fill func(ids []uint32, states []byte)
	// Faults names what goes wrong with the nth completion, counted from 1.
	Faults map[int]string
	// Always goes wrong with every completion.
	Always string
	// Alter changes a sample's states before they are written.
	Alter func(ids []uint32, states []byte)
	// Addr is where Start listens; "": a free port of its own. A server that
	// was closed and another at its address are one that was restarted.
	Addr string
	// Idle is how long an unused connection stays open; 0: five seconds.
	Idle time.Duration
	// Info is answered at /server_info; "": as in production, where it is not
	// there.
	Info string

	srv *httptest.Server

	mu      sync.Mutex
	n       int
	dead    bool
	active  int
	most    int
	until   time.Time // it computes what it was asked for
	writers sync.WaitGroup
	hung    []*os.File
}

// The faults that VLLM knows.
const (
	Fault500         = "500"            // the engine fails at this request
	Fault503         = "503"            // not ready
	Fault429         = "429"            // too many requests, Retry-After: 1
	FaultClose       = "close"          // the connection breaks before the answer
	FaultCut         = "cut"            // … in the middle of it
	FaultDie         = "die"            // as close, and nothing is served any more until Revive
	FaultLocked      = "locked"         // the lock is never released
	FaultNoFile      = "no file"        // the lock is released without a file
	FaultTruncated   = "truncated"      // half of the file
	FaultWrongIDs    = "wrong ids"      // other ids in the file
	FaultWrongPrompt = "wrong prompt"   // other ids in the answer
	FaultShort       = "short rows"     // fewer rows than ids (prefix cache)
	FaultLayer       = "missing layer"  // the last layer is missing
	FaultHidden      = "hidden"         // another hidden size
	FaultFloat       = "float16"        // another dtype
	FaultNaN         = "nan"            // one value
	FaultZero        = "zero row"       // one row of one layer
	FaultNoParams    = "no params"      // kv_transfer_params is not there
	FaultNullParams  = "null params"    // … is null
	FaultSlow        = "slow"           // half a second
	FaultGarbage     = "garbage header" // no safetensors
	FaultHang        = "hang"           // no answer until the client goes
	FaultNotJSON     = "not json"       // an answer that is none
	FaultPath        = "relative path"  // a path that cannot be meant
)

// Start listens; Close ends it.
func (v *VLLM) Start() string {
	if v.Gen == 0 {
		v.Gen = 3
	}
	if v.Model == "" {
		v.Model = "target"
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		reply(w, 200, map[string]string{"version": map[int]string{1: "0.19.0", 2: "0.22.0", 3: "0.32.0"}[v.Gen]})
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		m := map[string]any{"id": v.Model, "object": "model", "owned_by": "vllm", "root": v.Model, "parent": nil}
		if !v.Terse {
			m["max_model_len"] = v.MaxLen
		}
		reply(w, 200, map[string]any{"object": "list", "data": []any{m}})
	})
	if v.Info != "" {
		mux.HandleFunc("GET /server_info", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, v.Info) })
	}
	mux.HandleFunc("POST /v1/completions", v.completions)
	v.srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		dead := v.dead
		v.mu.Unlock()
		switch {
		case dead:
			panic(http.ErrAbortHandler)
		case v.Key != "" && r.URL.Path != "/health" && r.Header.Get("Authorization") != "Bearer "+v.Key:
			reply(w, 401, map[string]string{"error": "Unauthorized"})
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	v.srv.Config.IdleTimeout = v.Idle
	if v.Idle == 0 {
		v.srv.Config.IdleTimeout = 5 * time.Second
	}
	if v.Addr != "" {
		_ = v.srv.Listener.Close()
		l, err := net.Listen("tcp", v.Addr)
		if err != nil {
			panic(err)
		}
		v.srv.Listener = l
	}
	v.srv.Start()
	return v.srv.URL
}

// Close ends the server, and the writers that hang.
func (v *VLLM) Close() {
	v.srv.CloseClientConnections()
	v.srv.Close()
	v.LetGo()
	v.writers.Wait()
}

// LetGo ends the writers that hang, as the end of their process does.
func (v *VLLM) LetGo() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, f := range v.hung {
		_ = f.Close() // again, for one that was let go before
	}
}

// Wait waits until every file is written.
func (v *VLLM) Wait() { v.writers.Wait() }

// Kill makes it as if nobody listened; Revive starts it again.
func (v *VLLM) Kill() {
	v.mu.Lock()
	v.dead = true
	v.mu.Unlock()
	v.srv.CloseClientConnections()
}

// Revive ends what Kill began.
func (v *VLLM) Revive() {
	v.mu.Lock()
	v.dead = false
	v.mu.Unlock()
}

// Calls returns the number of completions asked for, and the most at a time.
func (v *VLLM) Calls() (calls, most int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.n, v.most
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func refuse(w http.ResponseWriter, code int, param, message string) {
	kind := map[int]string{400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError", 429: "RateLimitError"}[code]
	reply(w, code, map[string]any{"error": map[string]any{"message": message, "type": kind, "param": param, "code": code}})
}

type completion struct {
	Model  string          `json:"model"`
	Prompt json.RawMessage `json:"prompt"`
	Max    int             `json:"max_tokens"`
	IDs    bool            `json:"return_token_ids"`
}

func (v *VLLM) completions(w http.ResponseWriter, r *http.Request) {
	var c completion
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
		refuse(w, 400, "", "not JSON: "+err.Error())
		return
	}
	if c.Model != v.Model {
		refuse(w, 404, "model", fmt.Sprintf("The model `%s` does not exist.", c.Model))
		return
	}
	var prompts [][]uint32
	var one []uint32
	if json.Unmarshal(c.Prompt, &one) == nil {
		prompts = [][]uint32{one}
	} else if json.Unmarshal(c.Prompt, &prompts) != nil {
		refuse(w, 400, "prompt", "a prompt as text is not served here")
		return
	}
	for _, ids := range prompts {
		if i := slices.IndexFunc(ids, func(id uint32) bool { return int(id) >= v.Vocab }); i >= 0 {
			refuse(w, 400, "", fmt.Sprintf("Token id %d is out of vocabulary", ids[i]))
			return
		}
		if len(ids)+c.Max > v.MaxLen {
			refuse(w, 400, "input_tokens", fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains %d input tokens", v.MaxLen, c.Max, len(ids)))
			return
		}
	}
	v.mu.Lock()
	v.n++
	fault := v.Faults[v.n]
	if fault == "" {
		fault = v.Always
	}
	v.active++
	v.most = max(v.most, v.active)
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		v.active--
		v.mu.Unlock()
	}()
	v.complete(w, r, c, prompts, fault)
}

// Mend ends all faults that are still to come.
func (v *VLLM) Mend() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.Faults, v.Always = nil, ""
}

func (v *VLLM) complete(w http.ResponseWriter, r *http.Request, c completion, prompts [][]uint32, fault string) {
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = random(8)
	}
	switch fault {
	case Fault500:
		refuse(w, 500, "", "EngineCore encountered an issue.")
		return
	case Fault503:
		refuse(w, 503, "", "")
		return
	case Fault429:
		w.Header().Set("Retry-After", "1")
		refuse(w, 429, "", "too many requests")
		return
	case FaultDie:
		v.Kill()
		panic(http.ErrAbortHandler)
	case FaultClose:
		v.leave(id, prompts[0])
		panic(http.ErrAbortHandler)
	case FaultNotJSON:
		fmt.Fprint(w, "<html>a proxy greets</html>")
		return
	}
	pause := v.Slow*time.Duration(len(prompts[0])) + v.turn(len(prompts[0]))
	switch fault {
	case FaultSlow:
		pause += 500 * time.Millisecond
	case FaultHang:
		pause = time.Hour
	}
	select {
	case <-r.Context().Done(): // the client went: the connector writes all the same
		v.leave(id, prompts[0])
		return
	case <-time.After(pause):
	}
	var paths []string
	for i, ids := range prompts {
		path := filepath.Join(v.Dir, fmt.Sprintf("cmpl-%s-%d-%s.safetensors", id, i, random(4)))
		paths = append(paths, path)
		v.write(path, ids, fault)
	}
	if fault == FaultPath {
		paths[0] = "somewhere/else.bin"
	}
	v.answer(w, c, id, prompts[0], paths[0], fault)
}

// turn is how long a request waits for its own and all earlier tokens.
func (v *VLLM) turn(tokens int) time.Duration {
	if v.Rate <= 0 {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now := time.Now()
	if v.until.Before(now) {
		v.until = now
	}
	v.until = v.until.Add(time.Duration(float64(tokens) / v.Rate * float64(time.Second)))
	return v.until.Sub(now)
}

// leave writes the file of a request that nobody waits for any more: ids and
// shape are right, the rows are garbage.
func (v *VLLM) leave(id string, ids []uint32) {
	path := filepath.Join(v.Dir, fmt.Sprintf("cmpl-%s-0-%s.safetensors", id, random(4)))
	v.write(path, ids, "garbage rows")
}

// answer replies as the real server does; of a batch it names the first file only.
func (v *VLLM) answer(w http.ResponseWriter, c completion, id string, ids []uint32, path, fault string) {
	choice := map[string]any{"index": 0, "text": " x", "logprobs": nil, "finish_reason": "length", "stop_reason": nil, "prompt_logprobs": nil}
	if c.IDs {
		choice["token_ids"] = []int{7}
		choice["prompt_token_ids"] = ids
		if fault == FaultWrongPrompt {
			choice["prompt_token_ids"] = append(slices.Clone(ids), 1)
		}
	}
	m := map[string]any{
		"id": "cmpl-" + id, "object": "text_completion", "created": 1796013864, "model": v.Model, "choices": []any{choice},
		"service_tier": nil, "system_fingerprint": nil,
		"usage":              map[string]any{"prompt_tokens": len(ids), "total_tokens": len(ids) + 1, "completion_tokens": 1},
		"kv_transfer_params": map[string]any{"hidden_states_path": path},
	}
	switch fault {
	case FaultNoParams:
		delete(m, "kv_transfer_params")
	case FaultNullParams:
		m["kv_transfer_params"] = nil
	case FaultCut:
		w.Header().Set("Content-Length", "100000")
		_ = json.NewEncoder(w).Encode(m)
		panic(http.ErrAbortHandler)
	}
	reply(w, 200, m)
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
