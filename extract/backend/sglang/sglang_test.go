package sglang

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
	"eaglebatch/extract/backend/enginetest"
)

func client(t *testing.T, s *enginetest.SGLang) *Backend {
	t.Helper()
	url := s.Start()
	t.Cleanup(s.Close)
	b, err := New(Options{Endpoints: []string{url}, Hidden: 32, Layers: 12, Vocab: 500, Capture: []int{12}, Attempts: 2, Backoff: 5 * time.Millisecond, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fake() *enginetest.SGLang { return &enginetest.SGLang{Hidden: 32, Layer: 12, MaxLen: 2000} }

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Factory{New: func(t *testing.T) backend.Backend { return client(t, fake()) }})
}

// TestFaults: no wrong row comes through, and each fault gets its verdict.
func TestFaults(t *testing.T) {
	for fault, engine := range map[string]bool{
		"disabled": true, "cached": true, "wide": true, "500": true, "close": true, "short": false, "null": false, "long": false,
		"fp32": true, "row": false,
	} {
		t.Run(fault, func(t *testing.T) {
			s := fake()
			s.Fault = fault
			in := make(chan backend.Request, 1)
			in <- backend.Request{ID: 1, Tokens: []uint32{1, 2, 3}}
			close(in)
			var got backend.Chunk
			err := client(t, s).Serve(t.Context(), 0, in, func(c backend.Chunk) error { got = c; return nil })
			var se *backend.SampleError
			if errors.Is(err, backend.ErrUnavailable) != engine || errors.As(got.Err, &se) == engine || len(got.Data) > 0 {
				t.Errorf("serve: %v; the sample: %v, %d bytes", err, got.Err, len(got.Data))
			}
		})
	}
}

// TestPrefixCache: rows that the server's prefix cache holds are missing in its
// answers. A key of its own keeps a request from meeting it; where the server does
// not know keys, the cache is dropped and the request sent again.
func TestPrefixCache(t *testing.T) {
	for _, old := range []bool{false, true} {
		s := fake()
		s.Radix, s.NoKeys = true, old
		b := client(t, s)
		ids := []uint32{1, 2, 3, 4}
		for range 2 {
			in := make(chan backend.Request, 1)
			in <- backend.Request{ID: 1, Tokens: ids}
			close(in)
			var got backend.Chunk
			err := b.Serve(t.Context(), 0, in, func(c backend.Chunk) error { got = c; return nil })
			if err != nil || got.Err != nil || !bytes.Equal(got.Data, enginetest.Rows(ids, []int{12}, 32)) {
				t.Fatalf("keys unknown %t: %v, %v, %d bytes", old, err, got.Err, len(got.Data))
			}
		}
		if want := map[bool]int{false: 2, true: 3}[old]; s.Calls() != want {
			t.Errorf("keys unknown %t: %d calls, want %d", old, s.Calls(), want)
		}
	}
}

func TestRefusesOtherLayers(t *testing.T) {
	for _, layers := range [][]int{{2, 12}, {11}, nil} {
		_, err := New(Options{Endpoints: []string{"http://a:1"}, Hidden: 8, Layers: 12, Capture: layers})
		if err == nil || !strings.Contains(err.Error(), "backend: vllm") {
			t.Errorf("%v: %v, want the alternatives", layers, err)
		}
	}
}
