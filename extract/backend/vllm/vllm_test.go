package vllm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
	"eaglebatch/extract/backend/enginetest"

	"golang.org/x/sys/unix"
)

var layers = []int{2, 6, 12}

// server starts a fake; change sets it up first.
func server(t *testing.T, change ...func(*enginetest.VLLM)) (*enginetest.VLLM, string) {
	t.Helper()
	v := &enginetest.VLLM{Dir: t.TempDir(), Layers: layers, Hidden: 32, Vocab: 500, MaxLen: 801, Delay: 3 * time.Millisecond}
	for _, c := range change {
		c(v)
	}
	url := v.Start()
	t.Cleanup(v.Close)
	return v, url
}

func client(t *testing.T, dir string, urls []string, change ...func(*Options)) *Backend {
	t.Helper()
	o := Options{
		Endpoints: urls, Hidden: 32, Layers: 12, Vocab: 500, Capture: layers, SharedDir: dir, Tag: "test",
		FileWait: 10 * time.Second, Timeout: 20 * time.Second, Backoff: 5 * time.Millisecond, Attempts: 3, chunk: 10 << 10,
	}
	for _, c := range change {
		c(&o)
	}
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	for gen := 1; gen <= 3; gen++ {
		t.Run(fmt.Sprintf("generation %d", gen), func(t *testing.T) {
			shape := func(v *enginetest.VLLM) { v.Gen, v.InPlace = gen, gen == 2 }
			backendtest.Run(t, backendtest.Factory{
				New: func(t *testing.T) backend.Backend {
					dir := t.TempDir()
					_, one := server(t, shape, func(v *enginetest.VLLM) { v.Dir = dir })
					_, two := server(t, shape, func(v *enginetest.VLLM) { v.Dir = dir })
					return client(t, dir, []string{one, two})
				},
				WithCapture: func(t *testing.T, ids []int) backend.Backend {
					v, url := server(t, shape, func(v *enginetest.VLLM) { v.Layers = ids })
					return client(t, v.Dir, []string{url}, func(o *Options) { o.Capture = ids })
				},
				Faulty: func(t *testing.T, f backendtest.Fault) backend.Backend {
					v, url := server(t, shape)
					o := func(o *Options) {}
					switch f {
					case backendtest.Dies:
						v.Faults = map[int]string{3: enginetest.FaultDie}
						return &reviving{client(t, v.Dir, []string{url}), v}
					case backendtest.Refuses:
						v.Faults = map[int]string{3: enginetest.FaultNoFile}
						if gen == 1 {
							v.Faults = map[int]string{3: enginetest.FaultTruncated}
						}
						// The third request is the third sample; a file that stays cut is waited
						// for no longer than the server keeps an idle connection.
						o = func(o *Options) { o.Concurrency, o.FileWait = 1, time.Second }
					case backendtest.Down:
						v.Kill()
					}
					return client(t, v.Dir, []string{url}, o)
				},
				MaxChunk: 10 << 10,
			})
		})
	}
}

// reviving starts the server again after each Serve that failed.
type reviving struct {
	*Backend
	v *enginetest.VLLM
}

func (r *reviving) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	err := r.Backend.Serve(ctx, slot, in, emit)
	if err != nil {
		r.v.Revive()
	}
	return err
}

// serve asks slot 0 for samples.
func serve(t *testing.T, b *Backend, samples ...[]uint32) (map[uint64][]byte, map[uint64]error, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := make(chan backend.Request, len(samples))
	for i, s := range samples {
		in <- backend.Request{ID: uint64(i), Tokens: s}
	}
	close(in)
	rows, errs := map[uint64][]byte{}, map[uint64]error{}
	err := b.Serve(ctx, 0, in, func(c backend.Chunk) error {
		rows[c.ID] = append(rows[c.ID], c.Data...)
		if c.Err != nil {
			errs[c.ID] = c.Err
		}
		return nil
	})
	return rows, errs, err
}

// TestFaults has every script of the fake: the right verdict, no wrong row, and
// no file left behind. Rows that are not finite or zero are handed on: finding
// them is the caller's, for every engine.
func TestFaults(t *testing.T) {
	// A connection that breaks, or that a request takes with it that is given up,
	// was the only one: the endpoint is looked at anew.
	const good, sample, engine = "good", "sample", "engine"
	tests := []struct {
		fault   string
		verdict string
		says    string
	}{
		{enginetest.Fault500, good, ""},
		{enginetest.Fault503, engine, "/v1/completions"},
		{enginetest.Fault429, good, ""},
		{enginetest.FaultClose, engine, "/v1/completions"},
		{enginetest.FaultCut, engine, "/v1/completions"},
		{enginetest.FaultSlow, good, ""},
		{enginetest.FaultNotJSON, good, ""},
		{enginetest.FaultHang, engine, "/v1/completions"},
		{enginetest.FaultDie, engine, "/v1/completions"},
		{enginetest.FaultLocked, sample, "still being written"},
		{enginetest.FaultNoFile, sample, "without writing the file"},
		{enginetest.FaultTruncated, sample, "bytes of"},
		{enginetest.FaultGarbage, sample, "header"},
		{enginetest.FaultWrongIDs, sample, "other token ids"},
		{enginetest.FaultWrongPrompt, sample, "other token ids"},
		{enginetest.FaultShort, sample, "rows of states"},
		{enginetest.FaultLayer, engine, "2 layers, 3 are wanted"},
		{enginetest.FaultHidden, engine, "hidden size 16"},
		{enginetest.FaultFloat, engine, "F16"},
		{enginetest.FaultNoParams, engine, "--kv-transfer-config"},
		{enginetest.FaultNullParams, engine, "--kv-transfer-config"},
		{enginetest.FaultPath, engine, "somewhere/else.bin"},
	}
	for gen := 1; gen <= 3; gen++ {
		for _, c := range tests {
			if gen == 1 && (c.fault == enginetest.FaultLocked || c.fault == enginetest.FaultNoFile) {
				continue // it has no lock
			}
			t.Run(fmt.Sprintf("generation %d %s", gen, c.fault), func(t *testing.T) {
				t.Parallel()
				v, url := server(t, func(v *enginetest.VLLM) { v.Gen, v.Faults = gen, map[int]string{2: c.fault} })
				b := client(t, v.Dir, []string{url}, func(o *Options) {
					o.Concurrency = 1
					switch c.fault {
					case enginetest.FaultHang:
						o.Timeout = 2 * time.Second
					case enginetest.FaultLocked, enginetest.FaultTruncated:
						o.FileWait = time.Second
					}
				})
				samples := [][]uint32{{1, 2, 3}, {4, 5, 6, 7}, {8}}
				rows, errs, err := serve(t, b, samples...)
				if c.verdict == engine != errors.Is(err, backend.ErrUnavailable) || c.verdict != engine && err != nil {
					t.Fatalf("serve: %v", err)
				}
				text := fmt.Sprint(err, errs[1])
				if !strings.Contains(text, c.says) {
					t.Errorf("%q does not say %q", text, c.says)
				}
				var se *backend.SampleError
				if c.verdict == sample && (!errors.As(errs[1], &se) || se.Permanent) {
					t.Errorf("the sample: %v, want a failure that may be tried again", errs[1])
				}
				for i, ids := range samples {
					want := enginetest.Rows(ids, layers, 32)
					switch got := rows[uint64(i)]; {
					case i == 1 && c.verdict != good:
						if len(got) != 0 {
							t.Errorf("%d bytes for the request that failed", len(got))
						}
					case i == 2 && c.verdict == engine:
					case !bytes.Equal(got, want):
						t.Errorf("sample %d: %d bytes, not the right %d", i, len(got), len(want))
					}
				}
				v.Revive()
				nothingLeft(t, v, b)
			})
		}
	}
}

// nothingLeft closes the client and wants the shared directory empty.
func nothingLeft(t *testing.T, v *enginetest.VLLM, b *Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	v.Wait()
	b.Sweep()
	left, err := filepath.Glob(filepath.Join(v.Dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestPersistent500: one sample at which the engine always fails, while it is
// well otherwise, is that sample's failure; a server that always fails is not.
func TestPersistent500(t *testing.T) {
	v, url := server(t, func(v *enginetest.VLLM) { v.Always = enginetest.Fault500 })
	b := client(t, v.Dir, []string{url})
	_, errs, err := serve(t, b, []uint32{1})
	var se *backend.SampleError
	if err != nil || !errors.As(errs[0], &se) || se.Permanent {
		t.Errorf("500: %v, %v", err, errs)
	}
	if n, _ := v.Calls(); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	v.Always = enginetest.Fault503
	if _, errs, err = serve(t, b, []uint32{1}); !errors.Is(err, backend.ErrUnavailable) || len(errs) > 0 {
		t.Errorf("503: %v, %v", err, errs)
	}
	nothingLeft(t, v, b)
}

// TestRefusals: what only the server knows it cannot take is the sample's lasting
// failure, and costs one request.
func TestRefusals(t *testing.T) {
	v, url := server(t, func(v *enginetest.VLLM) { v.Terse, v.MaxLen = true, 11 })
	b := client(t, v.Dir, []string{url}, func(o *Options) { o.Vocab = 0 })
	_, errs, err := serve(t, b, []uint32{1, 2}, []uint32{1, 600}, slices.Repeat([]uint32{1}, 11))
	if err != nil || errs[0] != nil {
		t.Fatal(err, errs)
	}
	for i, code := range map[uint64]string{1: "bad_token", 2: "too_long"} {
		var se *backend.SampleError
		if !errors.As(errs[i], &se) || se.Code != code || !se.Permanent {
			t.Errorf("sample %d: %v, want a lasting %s", i, errs[i], code)
		}
	}
	nothingLeft(t, v, b)
}

// TestOrphans: a client that goes leaves nothing, although the server still
// writes the file; files of others stay.
func TestOrphans(t *testing.T) {
	v, url := server(t, func(v *enginetest.VLLM) { v.Always = enginetest.FaultHang; v.Delay = 50 * time.Millisecond })
	others := []string{"cmpl-af224c9ea1b4c618-0-85b9157b.safetensors", "cmpl-eb-other-000001-0-85b9157b.safetensors", "hs_1.safetensors", "cmpl-eb-test-notes.txt"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(v.Dir, name), []byte("theirs"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	earlier := filepath.Join(v.Dir, "cmpl-eb-test-000007-0-85b9157b.safetensors")
	for _, name := range []string{earlier, earlier + ".lock"} {
		if err := os.WriteFile(name, []byte("of a run that was killed"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	b := client(t, v.Dir, []string{url})
	ctx, cancel := context.WithCancel(t.Context())
	in := make(chan backend.Request, 2)
	in <- backend.Request{ID: 1, Tokens: []uint32{1}}
	in <- backend.Request{ID: 2, Tokens: []uint32{2}}
	go func() {
		for n := 0; n < 2 && ctx.Err() == nil; n, _ = v.Calls() {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if err := b.Serve(ctx, 0, in, func(backend.Chunk) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("serve: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	var left []string
	entries, err := os.ReadDir(v.Dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	slices.Sort(others)
	if err != nil || !slices.Equal(left, others) {
		t.Errorf("left are %v (%v), want %v", left, err, others)
	}
}

// TestSweepSparesWriters: what a server still writes is left alone.
func TestSweepSparesWriters(t *testing.T) {
	v, url := server(t)
	b := client(t, v.Dir, []string{url})
	path := filepath.Join(v.Dir, "cmpl-eb-test-000009-0-85b9157b.safetensors")
	lock, err := os.Create(path + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	b.Sweep()
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the lock of a writer: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, v, b)
}

// TestSwapped: another server that takes the place of one at once, while nothing is
// in flight, is not asked for states before it was looked at.
func TestSwapped(t *testing.T) {
	v, url := server(t)
	b := client(t, v.Dir, []string{url})
	in, came := make(chan backend.Request), make(chan backend.Chunk, 1)
	var other *enginetest.VLLM
	go func() {
		defer close(in)
		in <- backend.Request{ID: 1, Tokens: []uint32{1, 2}}
		<-came
		v.Close()
		other, _ = server(t, func(o *enginetest.VLLM) { o.Dir, o.Layers, o.Addr = v.Dir, []int{1, 5, 12}, url[len("http://"):] })
		in <- backend.Request{ID: 2, Tokens: []uint32{1, 2}}
	}()
	err := b.Serve(t.Context(), 0, in, func(c backend.Chunk) error { came <- c; return nil })
	if calls, _ := other.Calls(); !errors.Is(err, backend.ErrUnavailable) || calls > 0 || len(came) > 0 {
		t.Errorf("%v after %d answers of another server", err, calls)
	}
	nothingLeft(t, other, b)
}

// TestInFlight: neither bound is passed, and a sample beyond the bytes goes
// alone.
func TestInFlight(t *testing.T) {
	v, url := server(t, func(v *enginetest.VLLM) { v.Slow = time.Millisecond })
	b := client(t, v.Dir, []string{url}, func(o *Options) { o.Concurrency = 3; o.InFlight = 1 << 30 })
	var samples [][]uint32
	for i := range 12 {
		samples = append(samples, slices.Repeat([]uint32{uint32(i)}, 10))
	}
	if _, errs, err := serve(t, b, samples...); err != nil || len(errs) > 0 {
		t.Fatal(err, errs)
	}
	if _, most := v.Calls(); most != 3 {
		t.Errorf("%d requests at a time, want 3", most)
	}
	v, url = server(t, func(v *enginetest.VLLM) { v.Slow = time.Millisecond })
	b = client(t, v.Dir, []string{url}, func(o *Options) { o.InFlight = 25 * int64(len(layers)) * 32 * 2 })
	samples[3] = slices.Repeat([]uint32{9}, 100)
	if _, errs, err := serve(t, b, samples...); err != nil || len(errs) > 0 {
		t.Fatal(err, errs)
	}
	if _, most := v.Calls(); most != 2 {
		t.Errorf("%d requests of 10 tokens at a time with room for 25, want 2", most)
	}
}
