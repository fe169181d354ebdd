package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"eaglebatch/extract/backend"
)

// ask runs a session of one request against a server that answers as told.
func ask(t *testing.T, l Limits, answer http.HandlerFunc) (calls int64, given []backend.Chunk, err error) {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.Add(1); answer(w, r) }))
	defer s.Close()
	ends, err := Endpoints("engine", "sesame", "", []string{s.URL})
	if err != nil {
		t.Fatal(err)
	}
	hc := New(1)
	defer hc.Close()
	l.Requests, l.Size = 1, func(int) int64 { return 1 }
	in := make(chan backend.Request, 1)
	in <- backend.Request{ID: 1, Tokens: []uint32{1}}
	close(in)
	x := ends[0].Open(t.Context(), l, func(c backend.Chunk) error { given = append(given, c); return nil })
	err = x.Run(in, func(rq backend.Request) error {
		err := x.Ask(Question{
			Path: "/ask",
			Send: func(ctx context.Context) error {
				return ends[0].Do(ctx, hc, Call{Method: http.MethodPost, Path: "/ask", Body: []byte("{}"), Into: new(struct{})})
			},
			Refused: func(e *StatusError) error { return Permanent("refused", "%w", e) },
			Failed:  func(err error) error { return fmt.Errorf("failed: %w", err) },
		})
		if err != nil {
			return err
		}
		return x.Give(backend.Chunk{ID: rq.ID, Rows: 1})
	})
	return n.Load(), given, err
}

// TestAsk: what is tried again, what is not, and whose failure it is.
func TestAsk(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		calls  int64
		says   string // the session's error
		sample bool   // the sample fails
	}{
		{"well", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer sesame" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			fmt.Fprint(w, "{}")
		}, 1, "", false},
		{"refused", status(http.StatusBadRequest), 1, "", true},
		{"500", status(http.StatusInternalServerError), 3, "failed: 3 attempts", false},
		{"too many", status(http.StatusTooManyRequests), 3, "failed: 3 attempts", false},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, 3, "failed: 3 attempts", false},
		{"another kind of JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[1]") }, 3, "failed: 3 attempts", false},
		{"a proxy's", status(http.StatusBadGateway), 1, "engine unavailable", false},
		{"broken", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1, "engine unavailable", false},
		// It is given up, and takes the only connection with it.
		{"silent", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // so that it notices when the client goes
			<-r.Context().Done()
		}, 3, "failed: 3 attempts", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			timeout := time.Minute
			if c.name == "silent" {
				timeout = 50 * time.Millisecond
			}
			calls, given, err := ask(t, Limits{Bytes: 1, Timeout: timeout, Attempts: 3, Backoff: time.Millisecond}, c.answer)
			if calls != c.calls || !strings.Contains(fmt.Sprint(err), c.says) || (err == nil) != (c.says == "") {
				t.Errorf("%d calls, want %d; %v, want %q", calls, c.calls, err, c.says)
			}
			var se *backend.SampleError
			if want := c.says == ""; (len(given) == 1) != want || want && errors.As(given[0].Err, &se) != c.sample {
				t.Errorf("given %+v", given)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	ends, err := Endpoints("engine", "", "/v1", []string{"http://user:hunter2@a:1/v1/", "https://b/x"})
	if err != nil || len(ends) != 2 || strings.Contains(ends[0].Name(), "hunter2") || strings.Contains(ends[0].Name(), "v1") {
		t.Errorf("%v, %v", ends, err)
	}
	for _, bad := range [][]string{nil, {"a:8000"}, {"ftp://a"}, {"http://a", "http://a/v1"}} {
		if _, err := Endpoints("engine", "", "/v1", bad); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}
