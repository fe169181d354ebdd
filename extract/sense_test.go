package extract

import (
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
	"eaglebatch/extract/model"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

const oracleVocab = 512

// oracle is an engine whose last layer's state tells the next token nearly
// always, in the way that mode spoils.
type oracle struct {
	hidden  int
	capture []int
	mode    string
	pair    [][]uint32 // samples that have each other's states
}

// direction is the row of lm_head for a token: every entry 0.7 or -0.7.
func direction(token uint32, i int) float32 {
	if mix(uint64(token)<<8|uint64(i))>>33&1 == 0 {
		return -0.7
	}
	return 0.7
}

// normWeight is uneven, so that norming twice shows.
func normWeight(i int) float32 { return []float32{0.2, 3}[i%2] }

func (o *oracle) Describe(context.Context) (backend.Info, error) {
	return backend.Info{Engine: "oracle", Version: "1", Hidden: o.hidden, Layers: 8, Vocab: oracleVocab, Capture: o.capture,
		DType: "bf16", LastPreNorm: true, Slots: 1, Deterministic: true}, nil
}

func (o *oracle) Close() error { return nil }

func (o *oracle) Serve(ctx context.Context, _ int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	var other []uint32 // the sample before
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case rq, ok := <-in:
			if !ok {
				return nil
			}
			if err := emit(backend.Chunk{ID: rq.ID, Rows: len(rq.Tokens), Data: o.states(rq.Tokens, other), Echo: rq.Tokens}); err != nil {
				return err
			}
			if len(rq.Tokens) > canaryTokens {
				other = rq.Tokens
			}
		}
	}
}

// target is the token that the state of token t speaks for.
func (o *oracle) target(ids, other []uint32, t int) uint32 {
	at := func(ids []uint32, i int) uint32 {
		if len(ids) == 0 {
			return 0
		}
		return ids[min(i, len(ids)-1)]
	}
	if mix(uint64(ids[t])*31+uint64(t))%20 == 0 {
		return uint32(mix(uint64(t)) % oracleVocab) // no model is always right
	}
	switch o.mode {
	case "late":
		return at(ids, t)
	case "early":
		return at(ids, t+2)
	case "swapped":
		return at(other, t+1)
	case "one swapped":
		if ids[0] == 7 && ids[1] == 7 {
			return at(ids, t+1) ^ 9
		}
	case "two swapped":
		if len(o.pair) == 2 && slices.Equal(ids, o.pair[0]) {
			return at(o.pair[1], t+1)
		}
		if len(o.pair) == 2 && slices.Equal(ids, o.pair[1]) {
			return at(o.pair[0], t+1)
		}
	case "other model":
		return at(ids, t+1) ^ 5
	}
	return at(ids, t+1)
}

func (o *oracle) states(ids, other []uint32) []byte {
	var data []byte
	for t := range ids {
		for l := range o.capture {
			token := uint32(l)
			if l == len(o.capture)-1 {
				token = o.target(ids, other, t)
			}
			for i := range o.hidden {
				v := 30 * direction(token, i) / normWeight(i)
				if o.mode == "normed" {
					v = 0.4 * direction(token, i)
				}
				data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
			}
		}
	}
	return data
}

// oracleHead writes the oracle's final norm and lm_head as a model directory.
func oracleHead(t *testing.T, hidden int) *model.Head {
	t.Helper()
	dir := t.TempDir()
	cfg := map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "hidden_size": hidden,
		"num_hidden_layers": 8, "vocab_size": oracleVocab, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096}
	js, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var lm, norm []byte
	for v := range oracleVocab {
		for i := range hidden {
			lm = binary.LittleEndian.AppendUint32(lm, math.Float32bits(direction(uint32(v), i)))
		}
	}
	for i := range hidden {
		norm = binary.LittleEndian.AppendUint32(norm, math.Float32bits(normWeight(i)))
	}
	var b bytes.Buffer
	err = errors.Join(safetensors.Write(&b, []tensor.Tensor{
		{Name: "model.embed_tokens.weight", Type: tensor.F32, Shape: []int{oracleVocab, hidden}, Data: lm},
		{Name: "model.norm.weight", Type: tensor.F32, Shape: []int{hidden}, Data: norm},
		{Name: "lm_head.weight", Type: tensor.F32, Shape: []int{oracleVocab, hidden}, Data: lm},
	}, nil),
		os.WriteFile(filepath.Join(dir, "config.json"), js, 0o666),
		os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	h, err := model.OpenHead(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func oracleWorld(t *testing.T, sevens ...int) *world {
	return oracleWorldWith(t, func(*blob.Meta) {}, sevens...)
}

func oracleWorldWith(t *testing.T, change func(*blob.Meta), sevens ...int) *world {
	return newWorld(t, planned{
		shape:   shape{hidden: 32, layers: 8, capture: []int{2, 4, 8}, dtype: "bf16"},
		lengths: slices.Repeat([]int{90}, 60), perBlob: 12,
		change: func(i int, ids []uint32) {
			for k := range ids {
				ids[k] = ids[k]%(oracleVocab-8) + 8
			}
			if slices.Contains(sevens, i) {
				ids[0], ids[1] = 7, 7
			}
		},
		meta: func(m *blob.Meta) {
			m.Synthetic, m.Engine = false, "oracle 1"
			change(m)
		},
	})
}

func TestSense(t *testing.T) {
	for _, c := range []struct{ mode, why string }{
		{"", ""},
		{"late", "the state of the token before"},
		{"early", "the state of the token behind"},
		{"normed", "after the norm"},
		{"swapped", "of other samples (swapped)"},
		{"other model", "of another model"},
	} {
		t.Run("mode "+c.mode, func(t *testing.T) {
			w := oracleWorld(t)
			o := w.options(&oracle{hidden: 32, capture: w.shape.capture, mode: c.mode})
			o.Head, o.MinTop1, o.scoring = oracleHead(t, 32), 0.5, time.Hour
			if c.why == "" {
				tallied(t, w, w.seal(o).Generation)
				return
			}
			res, err := w.run(t.Context(), o)
			if !errors.Is(err, ErrNonsense) || !errors.Is(err, backend.ErrUnavailable) {
				t.Fatalf("%+v, %v", res, err)
			}
			if !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v does not say %q", err, c.why)
			}
		})
	}
}

// tallied checks what a sound run leaves in the ledger and in the generation.
func tallied(t *testing.T, w *world, g store.GenerationRow) {
	t.Helper()
	var tallies map[string]*Tally
	w.must(w.ws.View(func(r store.Reader) error {
		v, ok, err := r.Value(SenseKey(g.ID))
		if !ok {
			t.Error("no tallies in the ledger")
		}
		return errors.Join(err, json.Unmarshal(v, &tallies))
	}))
	a := tallies["A1"]
	if a == nil || a.Rows < judgeRows || float64(a.Top1) < 0.85*float64(a.Rows) {
		t.Errorf("tallies %+v", a)
	}
	if _, ok := w.files(g)[headName]; !ok {
		t.Errorf("%s is missing", headName)
	}
}

// TestSenseOff: with no least share the rows are scored and nothing is judged.
func TestSenseOff(t *testing.T) {
	w := oracleWorld(t)
	o := w.options(&oracle{hidden: 32, capture: w.shape.capture, mode: "other model"})
	o.Head, o.MaxQuarantined = oracleHead(t, 32), human.Share{}
	w.seal(o)
}

// TestSenseOneSample: samples that have another's states are left out, the rest
// is sealed; also where they are among the first, before it is known how often a
// sound state speaks for its token.
func TestSenseOneSample(t *testing.T) {
	for name, c := range map[string]struct {
		mode    string
		samples []int
	}{
		"one":                {"one swapped", []int{50}},
		"two":                {"two swapped", []int{40, 44}},
		"two of the first":   {"two swapped", []int{2, 3}},
		"two in other blobs": {"two swapped", []int{7, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			w := oracleWorld(t, 50)
			e := &oracle{hidden: 32, capture: w.shape.capture, mode: c.mode}
			if len(c.samples) == 2 {
				e.pair = [][]uint32{w.samples[c.samples[0]].IDs, w.samples[c.samples[1]].IDs}
			}
			o := w.options(e)
			o.Head, o.MinTop1, o.MaxQuarantined, o.scoring = oracleHead(t, 32), 0.5, human.Share{Absolute: 2}, time.Hour
			var gone []int
			for _, q := range w.quarantine(w.seal(o).Generation) {
				gone = append(gone, int(q.Sample))
				if !strings.Contains(q.Reason, "another sample") {
					t.Errorf("quarantined: %+v", q)
				}
			}
			slices.Sort(gone)
			if !slices.Equal(gone, c.samples) {
				t.Errorf("quarantined are %v, want %v", gone, c.samples)
			}
		})
	}
}

func TestAtMost(t *testing.T) {
	for _, c := range []struct {
		k, n int
		p    float64
		want float64
	}{
		{0, 20, 0.5, 1 / 1048576.0}, {1, 2, 0.5, 0.75}, {2, 2, 0.3, 1}, {0, 5, 0, 1}, {5, 5, 1, 0}, {1, 16, 0.9, 1.45e-14},
	} {
		if got := atMost(c.k, c.n, c.p); math.Abs(got-c.want) > 1e-9+0.01*c.want {
			t.Errorf("at most %d of %d at %g: %g, want %g", c.k, c.n, c.p, got, c.want)
		}
	}
}
