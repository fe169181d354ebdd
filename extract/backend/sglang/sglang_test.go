package sglang

import (
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

func TestRefusesOtherLayers(t *testing.T) {
	for _, layers := range [][]int{{2, 12}, {11}, nil} {
		_, err := New(Options{Endpoints: []string{"http://a:1"}, Hidden: 8, Layers: 12, Capture: layers})
		if err == nil || !strings.Contains(err.Error(), "backend: vllm") {
			t.Errorf("%v: %v, want the alternatives", layers, err)
		}
	}
}
