package extract

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/native"
	"eaglebatch/extract/model"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/fixtures"
	"eaglebatch/internal/human"
	"eaglebatch/store/blob"
)

// spoilt is the native engine on a model that was trained, spoilt in one way.
type spoilt struct {
	backend.Backend
	pair  [][]uint32 // two samples that get each other's states
	spoil func(states []byte, tokens int)
}

// Serve hands on whole samples.
func (p *spoilt) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	asked, lengths := make(chan backend.Request), make(chan map[uint64]int, 1)
	lengths <- map[uint64]int{}
	go func() {
		defer close(asked)
		for rq := range in {
			if i := slices.IndexFunc(p.pair, func(ids []uint32) bool { return slices.Equal(ids, rq.Tokens) }); i >= 0 {
				rq.Tokens = p.pair[1-i]
			}
			m := <-lengths
			m[rq.ID] = len(rq.Tokens)
			lengths <- m
			select {
			case asked <- rq:
			case <-ctx.Done():
				return
			}
		}
	}()
	whole := map[uint64][]byte{}
	return p.Backend.Serve(ctx, slot, asked, func(c backend.Chunk) error {
		if c.Err != nil {
			return emit(c)
		}
		m := <-lengths
		n := m[c.ID]
		lengths <- m
		whole[c.ID] = append(whole[c.ID], c.Data...)
		if c.First+c.Rows < n {
			return nil
		}
		data := whole[c.ID]
		delete(whole, c.ID)
		if p.spoil != nil {
			p.spoil(data, n)
		}
		return emit(backend.Chunk{ID: c.ID, Rows: n, Data: data})
	})
}

// chats returns the token ids of the quickstart's chats.
func chats(t *testing.T) (out [][]uint32) {
	t.Helper()
	b, err := fixtures.FS().Open("quickstart/data/A_chat/tokenized_data.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for s := bufio.NewScanner(b); s.Scan(); {
		var line struct {
			IDs []uint32 `json:"input_ids"`
		}
		if json.Unmarshal(s.Bytes(), &line) == nil && len(line.IDs) >= 120 {
			out = append(out, line.IDs)
		}
	}
	return out
}

// trained copies the trained model, changed.
func trained(t *testing.T, change func(weights []byte, at func(name string) []byte)) string {
	t.Helper()
	dir, err := fixtures.Copy(t.TempDir(), "models/tiny-llama")
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return dir
	}
	path := filepath.Join(dir, "model.safetensors")
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change(b, func(name string) []byte {
		x, ok := f.Tensor(name)
		if !ok {
			t.Fatalf("no tensor %q", name)
		}
		i := bytes.Index(b, x.Data)
		return b[i : i+len(x.Data)]
	})
	if err := errors.Join(f.Close(), os.WriteFile(path, b, 0o666)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// floats calls fn with each little endian float32 of b and keeps what it returns.
func floats(b []byte, fn func(i int, v float32) float32) {
	for i := 0; i < len(b); i += 4 {
		v := math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))
		binary.LittleEndian.PutUint32(b[i:], math.Float32bits(fn(i/4, v)))
	}
}

// TestPlanted plants one error at a time into states that a trained model gives
// for text that it was trained on, and wants each found, named, and nothing else
// taken for one.
func TestPlanted(t *testing.T) {
	const hidden, layers = 64, 4
	last := func(states []byte, token int) []byte { return states[((token*layers)+layers-1)*hidden*4:][:hidden*4] }
	var norm []float32
	trained(t, func(_ []byte, at func(string) []byte) {
		floats(at("model.norm.weight"), func(_ int, v float32) float32 { norm = append(norm, v); return v })
	})
	postNorm := func(states []byte, tokens int) {
		for k := range tokens {
			sum := 0.0
			floats(last(states, k), func(_ int, v float32) float32 { sum += float64(v) * float64(v); return v })
			scale := float32(1 / math.Sqrt(sum/hidden+1e-5))
			floats(last(states, k), func(i int, v float32) float32 { return v * scale * norm[i] })
		}
	}
	for _, c := range []struct {
		name  string
		says  string // of the error that ends the run; "": it is sealed
		pair  []int
		spoil func([]byte, int)
		model func([]byte, func(string) []byte)
	}{
		{name: "nothing"},
		{name: "rows shifted by one", says: "each holds the state of the token before",
			spoil: func(s []byte, n int) { copy(s[layers*hidden*4:], s[:(n-1)*layers*hidden*4]) }},
		{name: "post-norm last", says: "after the norm", spoil: postNorm},
		{name: "two samples swapped", pair: []int{30, 41}},
		{name: "two of the first samples swapped", pair: []int{1, 4}},
		{name: "other weights", says: "of another model", model: func(_ []byte, at func(string) []byte) {
			// Another model has other embeddings too: from those of the token itself
			// alone this one guesses four of ten right.
			floats(at("model.embed_tokens.weight"), func(i int, v float32) float32 { return v * float32(1-2*int(mix(uint64(i))&1)) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := chats(t)
			for _, i := range c.pair {
				text[i] = text[i][:120] // of one length
			}
			var n []int
			for _, ids := range text {
				n = append(n, len(ids))
			}
			sh := shape{hidden: hidden, layers: 8, capture: []int{2, 4, 5, 8}, dtype: "fp32"}
			w := newWorld(t, planned{shape: sh, lengths: n, perBlob: 20, change: func(i int, ids []uint32) { copy(ids, text[i]) },
				meta: func(m *blob.Meta) { m.Synthetic, m.Engine = false, "native-fp32" }})
			e, err := native.New(trained(t, c.model), native.Options{Capture: sh.capture, DType: sh.dtype, Threads: 1})
			w.must(err)
			p := &spoilt{Backend: e, spoil: c.spoil}
			for _, i := range c.pair {
				p.pair = append(p.pair, text[i])
			}
			o := w.options(p)
			o.MinTop1, o.MaxQuarantined, o.scoring = 0.1, human.Share{Absolute: 2}, time.Hour
			o.Head, err = model.OpenHead(trained(t, nil))
			w.must(err)
			t.Cleanup(func() { w.must(errors.Join(o.Head.Close(), e.Close())) })
			res, err := w.run(t.Context(), o)
			if c.says != "" {
				if !errors.Is(err, ErrNonsense) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want one that says %q", err, c.says)
				}
				return
			}
			w.must(err)
			var gone []int
			for _, q := range w.quarantine(res.Generation) {
				gone = append(gone, int(q.Sample))
			}
			if slices.Sort(gone); !slices.Equal(gone, c.pair) {
				t.Errorf("quarantined are %v, want %v", gone, c.pair)
			}
		})
	}
}
