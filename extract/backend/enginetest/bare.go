package enginetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bare asks a vLLM server for the states of samples, so many at a time, and
// removes each file unread once it is written: the most that a client can get out
// of the server. It waits for the lock as servers of the third generation want.
func Bare(ctx context.Context, url, model string, concurrency int, samples [][]uint32) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: concurrency, IdleConnTimeout: 4 * time.Second}}
	defer hc.CloseIdleConnections()
	next := make(chan []uint32)
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for ids := range next {
				if err := bare(ctx, hc, url, model, ids); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for _, ids := range samples {
		select {
		case next <- ids:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

func bare(ctx context.Context, hc *http.Client, url, model string, ids []uint32) error {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0})
	if err != nil {
		return err
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	rq.Header.Set("Content-Type", "application/json")
	rs, err := hc.Do(rq)
	if err != nil {
		return err
	}
	defer rs.Body.Close()
	text, err := io.ReadAll(rs.Body)
	if err != nil {
		return err
	}
	var m struct {
		KV struct {
			Path string `json:"hidden_states_path"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("HTTP %d: %w", rs.StatusCode, err)
	}
	if m.KV.Path == "" {
		return fmt.Errorf("HTTP %d: no file of states: %.300s", rs.StatusCode, text)
	}
	if err := written(ctx, m.KV.Path+".lock"); err != nil {
		return err
	}
	return errors.Join(os.Remove(m.KV.Path), os.Remove(m.KV.Path+".lock"))
}

// written waits until a lock is let go.
func written(ctx context.Context, lock string) error {
	f, err := os.Open(lock)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: a server that makes none is not served", err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
