package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eaglebatch/store/samples"
)

type oddCase struct {
	Line   int      `json:"line"`
	Name   string   `json:"name"`
	Class  string   `json:"class"`
	Reason string   `json:"reason"`
	IDs    []uint32 `json:"input_ids"`
	Mask   []int    `json:"loss_mask"`
}

func oddCases(t testing.TB) ([]oddCase, []byte) {
	t.Helper()
	b, err := os.ReadFile("testdata/tokenized_odd.expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []oddCase
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/tokenized_odd.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return cases, text
}

func parseAll(text []byte, lim limits) *block {
	b := newBlock()
	b.text = append(make([]byte, 0, len(text)+pad), text...)
	b.size = int64(len(text))
	b.parse(newRecord(lim))
	return b
}

// TestOddLines holds every line of the odd cases to its verdict.
func TestOddLines(t *testing.T) {
	cases, text := oddCases(t)
	b := parseAll(text, limits{vocab: 1000, minLoss: 1})
	if len(b.lines) != len(cases) {
		t.Fatalf("%d lines, want %d", len(b.lines), len(cases))
	}
	seen := map[[16]byte]bool{}
	for i, c := range cases {
		l := b.lines[i]
		got := map[class]string{accepted: "accepted", blank: "blank", rejected: "rejected"}[l.class]
		if l.class == accepted {
			if seen[l.row.Content] {
				got = "duplicate"
			}
			seen[l.row.Content] = true
		}
		if got != c.Class || l.verdict.reason != c.Reason {
			t.Errorf("line %d (%s): %s %q, want %s %q (%s)", c.Line, c.Name, got, l.verdict.reason, c.Class, c.Reason, l.verdict.message)
			continue
		}
		if c.Class != "accepted" {
			continue
		}
		mask := []int{}
		for _, m := range b.mask[l.first:][:l.tokens] {
			mask = append(mask, int(m))
		}
		if d := cmp.Diff(c.IDs, b.ids[l.first:][:l.tokens]); d != "" {
			t.Errorf("line %d (%s): ids (-want +got):\n%s", c.Line, c.Name, d)
		}
		if d := cmp.Diff(c.Mask, mask); d != "" {
			t.Errorf("line %d (%s): mask (-want +got):\n%s", c.Line, c.Name, d)
		}
	}
}

// TestVerdicts has the cases that need more than the odd ones show.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct{ name, line, reason, message string }{
		{"segments", `{"prompt":[1,2],"think":[3],"resp":[4],"tool":[5]}`, "", ""},
		{"both names of a part", `{"prompt":[1],"think":[3],"reasoning":[4]}`, reasonMalformed, "reasoning and think"},
		{"one of them null", `{"prompt":[1],"think":[3],"reasoning":null,"resp":[2]}`, "", ""},
		{"response without prompt", `{"response":[1,2]}`, reasonMissing, "prompt"},
		{"text", `{"prompt":"hello","response":"there"}`, reasonText, "prompt is text"},
		{"ids and text beside them", `{"prompt":"hello","input_ids":[1,2],"loss_mask":[0,1]}`, "", ""},
		{"ids as one number", `{"input_ids":5,"loss_mask":[1]}`, reasonMalformed, "no list"},
		{"whole floats as ids", `{"input_ids":[1.0,2e1],"loss_mask":[0,1]}`, "", ""},
		{"boolean as id", `{"input_ids":[1,true],"loss_mask":[0,1]}`, reasonToken, "token 1 is a boolean"},
		{"list among ids", `{"input_ids":[1,[2]],"loss_mask":[0,1]}`, reasonMalformed, ""},
		{"list in a list in a list", `{"input_ids":[[[1]]],"loss_mask":[1]}`, reasonMalformed, ""},
		{"empty list in a list", `{"input_ids":[[]],"loss_mask":[[]]}`, reasonEmpty, ""},
		{"leading zero", `{"input_ids":[01,2],"loss_mask":[0,1]}`, reasonMalformed, "byte 15"},
		{"trailing comma", `{"input_ids":[1,2,],"loss_mask":[0,1]}`, reasonMalformed, ""},
		{"bad id in the padding", `{"input_ids":[1,2,-1],"loss_mask":[0,1,0],"attention_mask":[1,1,0]}`, "", ""},
		{"bad mask in the padding", `{"input_ids":[1,2,0],"loss_mask":[0,1,7],"attention_mask":[1,1,0]}`, "", ""},
		{"supervised padding", `{"input_ids":[1,2,0],"loss_mask":[0,1,1],"attention_mask":[1,1,0]}`, reasonPadding, "token 2"},
		{"labelled padding", `{"input_ids":[1,2,9],"labels":[-100,2,9],"attention_mask":[1,1,0]}`, reasonPadding, "token 2"},
		{"ignored padding", `{"input_ids":[1,2,9],"labels":[-100,2,-100],"attention_mask":[1,1,0]}`, "", ""},
		{"left padding", `{"input_ids":[0,1,2],"loss_mask":[0,0,1],"attention_mask":[0,1,1]}`, reasonPadding, "token 0"},
		{"nothing but padding", `{"input_ids":[0,0],"loss_mask":[0,0],"attention_mask":[0,0]}`, reasonEmpty, ""},
		{"short attention_mask", `{"input_ids":[1,2],"loss_mask":[0,1],"attention_mask":[1]}`, reasonLength, "attention_mask"},
		{"short labels", `{"input_ids":[1,2],"labels":[-100]}`, reasonLength, "labels"},
		{"mask and shifted labels", `{"input_ids":[1,2,3],"loss_mask":[0,1,1],"labels":[2,3,-100]}`, reasonShifted, ""},
		{"mask and labels that copy the ids", `{"input_ids":[1,2,3],"loss_mask":[0,1,1],"labels":[1,2,3]}`, "", ""},
		{"mask and labels that say the same", `{"input_ids":[1,2,3],"loss_mask":[0,1,1],"labels":[-100,2,3]}`, "", ""},
		{"mask and labels, the same but in the padding", `{"input_ids":[1,2,3,0],"loss_mask":[0,1,1,0],"labels":[-100,2,3,0],"attention_mask":[1,1,1,0]}`, "", ""},
		{"mask wider than labels", `{"input_ids":[1,2,3],"loss_mask":[0,1,1],"labels":[-100,2,-100]}`, reasonContradicted, "token 2: loss_mask is 1, labels has -100"},
		{"mask narrower than labels", `{"input_ids":[7,8,9],"loss_mask":[0,0,1],"labels":[-100,8,9]}`, reasonContradicted, "token 1: loss_mask is 0, labels has the id 8"},
		{"mask one place before labels", `{"input_ids":[7,8,9],"loss_mask":[1,1,0],"labels":[-100,8,9]}`, reasonContradicted, "token 0: loss_mask is 1"},
		{"labels of nothing beside a mask", `{"input_ids":[7,8],"loss_mask":[0,1],"labels":[-100,-100]}`, reasonContradicted, "token 1"},
		{"null labels beside a mask", `{"input_ids":[7,8],"loss_mask":[0,1],"labels":null}`, "", ""},
		{"parts, mask and other labels", `{"prompt":[7],"response":[8,9],"loss_mask":[0,1,0],"labels":[-100,8,9]}`, reasonContradicted, "token 2: loss_mask is 0, labels has the id 9"},
		{"shifted with the prompt ignored", `{"input_ids":[1,2,3,4],"labels":[-100,3,4,-100]}`, reasonShifted, ""},
		{"repeated key, the last wins", `{"input_ids":[1,2],"loss_mask":[0,5],"loss_mask":[0,1]}`, "", ""},
		{"escaped key", `{"input\u005fids":[1,2],"loss_mask":[0,1]}`, "", ""},
		{"id as object", `{"id":{"a":1},"input_ids":[1,2],"loss_mask":[0,1]}`, "", ""},
		{"seven digits", `{"input_ids":[1,1234567],"loss_mask":[0,1]}`, reasonToken, "token 1 is 1234567"},
		{"nine digits", `{"input_ids":[1,123456789],"loss_mask":[0,1]}`, reasonToken, "token 1 is 123456789"},
		{"too little supervised", `{"input_ids":[1,2],"loss_mask":[0,1]}`, reasonFewLoss, "min_loss_tokens is 2"},
	} {
		lim := limits{vocab: 1000, minLoss: 1}
		if c.reason == reasonFewLoss {
			lim.minLoss = 2
		}
		b := parseAll([]byte(c.line), lim)
		if v := b.lines[0].verdict; v.reason != c.reason || !strings.Contains(v.message, c.message) {
			t.Errorf("%s: %q %q, want %q with %q", c.name, v.reason, v.message, c.reason, c.message)
		}
	}
}

func TestSegmentEnds(t *testing.T) {
	b := parseAll([]byte(`{"id":"x","prompt":[1,2],"think":[],"resp":[4],"tool":[5,6],"attention_mask":[1,1,1,1,0]}`), limits{vocab: 10, minLoss: 1})
	l := b.lines[0]
	if l.class != accepted || l.id != "x" || l.tokens != 4 {
		t.Fatalf("line %+v", l)
	}
	want := []samples.Segment{{Kind: "prompt", End: 2}, {Kind: "response", End: 3}, {Kind: "tool_calls", End: 4}}
	if d := cmp.Diff([]byte{0, 0, 1, 1}, b.mask[:4]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, l.segs); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// naive is the yardstick of the fuzz test: the same arrays by encoding/json.
func naive(raw json.RawMessage) ([]float64, bool) {
	var v []any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil || v == nil {
		return nil, false
	}
	out := []float64{}
	for _, e := range v {
		switch e := e.(type) {
		case json.Number:
			f, err := e.Float64()
			if err != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
				return nil, false
			}
			out = append(out, f)
		case bool:
			out = append(out, float64(b2i(e)))
		default:
			return nil, false
		}
	}
	return out, true
}

// FuzzLine: what encoding/json rejects is malformed and nothing else is so for
// its syntax; arrays of whole numbers come out with the same values; nothing
// panics or reads behind the pad.
func FuzzLine(f *testing.F) {
	_, text := oddCases(f)
	for _, l := range bytes.Split(text, []byte("\n")) {
		f.Add(l)
	}
	for _, l := range []string{
		`{"input_ids":[1,22,333,4444,55555,666666,7777777,88888888,999999999,-1,-100],"loss_mask":[0, 1, 0, 1,0,1,1,1,1,1,0]}`,
		`{"labels":[-0,1.5e3,1E-2,-12.50],"x":[[],{},[{"a":"\ud83d\ude00\\\"\/"}],true,false,null]}`,
		`{"a":"` + strings.Repeat("x", 20) + "\x01" + `"}`, "{\"a\":\"\xff\xfe\"}", `{"a":1}x`, `{"a" : [ 1 , 2 ] , "b":{}}`, `{"a":.5}`, `{"a":1.}`, `{"a":-}`, `{"a":1e}`, `{"a":tru}`, `{"":0}`, `{,}`, `{"a":"\u12g4"}`,
		`{"loss_mask":[0,1,0,1,0,1,0,1,1]}`, `{"loss_mask":[0, 1, 0, 1, 2]}`, `{"loss_mask":[0,1,0,1`, `{"input_ids":[1,`,
	} {
		f.Add([]byte(l))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		r := newRecord(limits{vocab: math.MaxInt32, minLoss: 0})
		buf := append(bytes.Clone(line), "\n99,1],\""...)[: len(line)+pad : len(line)+pad]
		v := r.parse(buf, 0, len(line))
		var obj map[string]json.RawMessage
		syntax := r.s.err != ""
		if valid := json.Unmarshal(line, &obj) == nil && obj != nil; valid == syntax {
			t.Fatalf("%q: encoding/json takes it: %v, here: %q", line, valid, r.s.err)
		}
		if syntax {
			if v.reason != reasonMalformed {
				t.Fatalf("%q: reason %q", line, v.reason)
			}
			return
		}
		compareArray(t, line, obj["labels"], &r.labels)
		if a := &r.inputIDs; obj["input_ids"] != nil {
			compareArray(t, line, obj["input_ids"], a)
		}
		if want, ok := naive(obj["loss_mask"]); ok {
			for i, x := range want {
				m := byte(2)
				if x == 0 || x == 1 {
					m = byte(x)
				}
				if r.loss.m[i] != m {
					t.Fatalf("%q: loss_mask[%d] is %d, want %v", line, i, r.loss.m[i], x)
				}
			}
		}
	})
}

func compareArray(t *testing.T, line []byte, raw json.RawMessage, a *array) {
	t.Helper()
	want, ok := naive(raw)
	if !ok {
		return
	}
	if a.kind != numbers || a.shape || a.bad != math.MaxInt || len(a.v) != len(want) {
		t.Fatalf("%q: %+v, want %v", line, a, want)
	}
	for i, x := range want {
		if float64(int32(a.v[i])) != x {
			t.Fatalf("%q: element %d is %d, want %v", line, i, int32(a.v[i]), x)
		}
	}
}

func TestDeepNesting(t *testing.T) {
	for depth, ok := range map[int]bool{maxDepth: true, maxDepth + 1: false} {
		line := `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
		if valid := json.Valid([]byte(line)); valid != ok {
			t.Fatalf("encoding/json at depth %d: %v", depth, valid)
		}
		r := newRecord(limits{vocab: 10})
		r.parse(append([]byte(line), make([]byte, pad)...), 0, len(line))
		if got := r.s.err == ""; got != ok {
			t.Errorf("depth %d: %q", depth, r.s.err)
		}
	}
}

// campaignLine is a line as the campaign's files have them, of n tokens.
func campaignLine(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"id":"B1_glaive-17","input_ids":[`)
	x := uint64(1)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		x = x*6364136223846793005 + 1442695040888963407
		u := float64(x>>11) / (1 << 53)
		fmt.Fprint(&b, min(163839, int(math.Pow(1-u, -1/0.7))))
	}
	b.WriteString(`],"loss_mask":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('0' + byte(b2i(i > n/3)))
	}
	b.WriteString("]}")
	return b.Bytes()
}

// BenchmarkParse measures one core against encoding/json on the same line.
func BenchmarkParse(b *testing.B) {
	line := campaignLine(3000)
	buf := append(bytes.Clone(line), make([]byte, pad)...)
	b.Run("scanner", func(b *testing.B) {
		r := newRecord(limits{vocab: 163840, minLoss: 1})
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			if v := r.parse(buf, 0, len(line)); v.reason != "" {
				b.Fatal(v)
			}
		}
	})
	b.Run("block", func(b *testing.B) {
		r, blk := newRecord(limits{vocab: 163840, minLoss: 1}), newBlock()
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			blk = blk.recycle()
			blk.text = append(blk.text, line...)
			blk.parse(r)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.SetBytes(int64(len(line)))
		for b.Loop() {
			var v struct {
				IDs  []uint32 `json:"input_ids"`
				Mask []uint32 `json:"loss_mask"`
			}
			if err := json.Unmarshal(line, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}
