package trainer

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"eaglebatch/extract/export"
	"eaglebatch/extract/model/tensor"
)

// sample has rows whose value at token t, layer k, column c is 1000 t + 10 k + c/8.
func sample(dtype string, tokens, hidden int) *Sample {
	t := &Target{DType: dtype, Hidden: hidden, Layers: []int{2, 5, 8}, Prenorm: true}
	s := &Sample{Row: &export.Row{Dataset: "d", Sample: 3}, Target: t}
	for i := range tokens {
		s.IDs, s.Mask = append(s.IDs, uint32(7*i)), append(s.Mask, byte(i%2))
	}
	_, put, size := access(dtype)
	s.Rows = func(dst []byte, layer, first, n int) error {
		if len(dst) != n*hidden*size || first+n > tokens {
			return errors.New("wrong rows asked for")
		}
		for r := range n {
			for c := range hidden {
				put(dst[(r*hidden+c)*size:], float32(first+r)*8+float32(layer)*2+float32(c)/8)
			}
		}
		return nil
	}
	return s
}

func value(t, layer, c int) float32 { return float32(t)*8 + float32(layer)*2 + float32(c)/8 }

// records reads the stored records of a torch file, and holds each to its place.
func records(t *testing.T, file []byte) map[string][]byte {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range z.File {
		at, err := f.DataOffset()
		if err != nil || at%64 != 0 || f.Method != zip.Store {
			t.Errorf("%s at %d, method %d, %v", f.Name, at, f.Method, err)
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r) // checks the crc
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if !bytes.Equal(b, file[at:int(at)+len(b)]) {
			t.Errorf("%s is not stored as it is", f.Name)
		}
		out[strings.TrimPrefix(f.Name, "archive/")] = b
	}
	return out
}

func floats(b []byte, dtype string) []float32 {
	get, _, size := access(dtype)
	out := make([]float32, len(b)/size)
	for i := range out {
		out[i] = get(b[i*size:])
	}
	return out
}

func TestSpecForge(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		s := sample(dtype, 9, 16)
		if err := (specForge{}).Check(s.Target); !errors.Is(err, errNoNorm) {
			t.Fatalf("without a norm: %v", err)
		}
		s.Target.Norm = &RMSNorm{Weight: slices.Repeat([]float32{1}, 16)}
		var b bytes.Buffer
		if err := (specForge{}).Write(&b, s); err != nil {
			t.Fatal(err)
		}
		rec := records(t, b.Bytes())
		ids := binary.LittleEndian.Uint64(rec["data/0"][8*4:])
		mask := binary.LittleEndian.Uint64(rec["data/1"][8*3:])
		last, aux := floats(rec["data/2"], dtype), floats(rec["data/3"], dtype)
		if ids != 28 || mask != 1 || len(last) != 9*16 || len(aux) != 9*32 {
			t.Fatalf("%s: id %d, mask %d, %d and %d values", dtype, ids, mask, len(last), len(aux))
		}
		for i, got := range aux {
			tok, layer, c := i/32, i%32/16, i%16
			if want := round(value(tok, layer, c), dtype); got != want {
				t.Fatalf("%s: aux of token %d, layer %d, column %d is %g, want %g", dtype, tok, layer, c, got, want)
			}
		}
		for tok := range 9 { // normed by ones: the mean square is 1
			var sum float64
			for _, v := range last[tok*16 : tok*16+16] {
				sum += float64(v) * float64(v)
			}
			if math.Abs(sum/16-1) > 0.01 {
				t.Errorf("%s: the last state of token %d has mean square %g", dtype, tok, sum/16)
			}
		}
	}
}

func TestModelOptSaysWhatItHolds(t *testing.T) {
	s := sample("bf16", 3, 8)
	var plain, normed bytes.Buffer
	if err := (modelOpt{}).Write(&plain, s); err != nil {
		t.Fatal(err)
	}
	s.Target.Norm = &RMSNorm{Weight: slices.Repeat([]float32{2}, 8), Eps: 1e-5}
	if err := (modelOpt{}).Write(&normed, s); err != nil {
		t.Fatal(err)
	}
	p, n := records(t, plain.Bytes()), records(t, normed.Bytes())
	flag := func(pickle []byte) byte { // the opcode after the key
		i := bytes.Index(pickle, []byte("hidden_states_prenorm"))
		return pickle[i+len("hidden_states_prenorm")]
	}
	if flag(p["data.pkl"]) != opTrue || flag(n["data.pkl"]) != opFalse {
		t.Error("hidden_states_prenorm does not say whether the norm was applied")
	}
	if got := floats(p["data/2"], "bf16")[8+3]; got != round(value(1, 2, 3), "bf16") {
		t.Errorf("the last state without a norm is %g", got)
	}
	if bytes.Equal(p["data/2"], n["data/2"]) || !bytes.Equal(p["data/3"], n["data/3"]) {
		t.Error("the norm touches the last state and nothing else")
	}
}

// Opcodes of NEWTRUE and NEWFALSE.
const opTrue, opFalse = 0x88, 0x89

func TestSpeculators(t *testing.T) {
	// More rows than fit in one block.
	s := sample("bf16", 3000, 1024)
	var b bytes.Buffer
	if err := (speculators{}).Write(&b, s); err != nil {
		t.Fatal(err)
	}
	n := int(binary.LittleEndian.Uint64(b.Bytes()))
	var head map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(b.Bytes()[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()[8+n:]
	h, ids := head["hidden_states"], head["token_ids"]
	if h.DType != "BF16" || !slices.Equal(h.Shape, []int{3000, 3, 1024}) || ids.DType != "I64" || ids.Offsets[1] != len(data) || (8+n)%8 != 0 {
		t.Fatalf("header %s", b.Bytes()[8:8+n])
	}
	vals := floats(data[h.Offsets[0]:h.Offsets[1]], "bf16")
	for _, at := range [][3]int{{0, 0, 0}, {1, 2, 1023}, {2047, 1, 5}, {2999, 2, 1023}} {
		want := round(value(at[0], at[1], at[2]), "bf16")
		if got := vals[(at[0]*3+at[1])*1024+at[2]]; got != want {
			t.Errorf("token %d, layer %d, column %d: %g, want %g", at[0], at[1], at[2], got, want)
		}
	}
	if id := binary.LittleEndian.Uint64(data[ids.Offsets[0]+8*2999:]); id != 7*2999 {
		t.Errorf("last id %d", id)
	}
	s.Target.Prenorm = false
	if err := (speculators{}).Check(s.Target); err == nil {
		t.Error("normed last states were taken")
	}
}

// TestNorm holds the norm to its definition in float64, rounded twice as HF
// transformers rounds.
func TestNorm(t *testing.T) {
	x := []float32{3, -1.5, 0.25, 100, 1e-3, -7, 0, 2}
	n := &RMSNorm{Weight: []float32{1, 0.5, 2, 1.25, 3, -1, 1, 0.75}, Eps: 1e-5}
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		_, put, size := access(dtype)
		b := make([]byte, size*len(x))
		var sum float64
		for i := range x {
			x[i] = round(x[i], dtype)
			put(b[i*size:], x[i])
			sum += float64(x[i]) * float64(x[i])
		}
		n.Apply(b, dtype)
		for i, got := range floats(b, dtype) {
			y := round(float32(float64(x[i])/math.Sqrt(sum/8+1e-5)), dtype)
			want := round(n.Weight[i]*y, dtype)
			if d := math.Abs(float64(got - want)); d > 1e-6*math.Abs(float64(want)) {
				t.Errorf("%s: value %d is %g, want %g", dtype, i, got, want)
			}
		}
	}
	if tensor.F32ToBF16(1.00390625) != 0x3f80 { // ties to even, as torch
		t.Error("bf16 does not round to even")
	}
}

func TestWriteFails(t *testing.T) {
	s := sample("bf16", 4, 8)
	s.Target.Norm = &RMSNorm{Weight: make([]float32, 8)}
	broken := errors.New("broken")
	s.Rows = func([]byte, int, int, int) error { return broken }
	for _, name := range Names() {
		l, ok := Named(name)
		if !ok {
			t.Fatal(name)
		}
		if err := l.Write(io.Discard, s); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
