package store

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/go-cmp/cmp"
)

func sampleSteps() []step {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)
	return []step{
		{seq: 1, at: at, label: "init", ops: []op{{bucket: "meta", key: "root_id", value: []byte("ab")}}},
		{seq: 2, at: at, label: "no ops"},
		{seq: 1<<64 - 1, at: at, label: "\"quoted\"\n<ä>\u2028", base: true, ops: []op{
			{bucket: "values", key: "a\\b", value: []byte{}},
			{bucket: "values", key: "gone", del: true},
			{bucket: "phases", key: "merge", value: bytes.Repeat([]byte{0, 0xff, '\n', '"'}, 33)},
		}},
	}
}

var stepCmp = cmp.AllowUnexported(step{}, op{})

func TestLineRoundTrip(t *testing.T) {
	for _, want := range sampleSteps() {
		line := appendStep(nil, want)
		if n := bytes.IndexByte(line, '\n'); n != len(line)-1 {
			t.Fatalf("newline at %d of %d bytes", n, len(line))
		}
		got, err := parseStep(line[:len(line)-1])
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, stepCmp); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestLineNoticesEveryChange(t *testing.T) {
	line := appendStep(nil, sampleSteps()[2])
	line = line[:len(line)-1]
	for i := range line {
		for _, x := range []byte{1, 0x20, 0x80, 0xff} {
			bad := bytes.Clone(line)
			bad[i] ^= x
			if _, err := parseStep(bad); !errors.Is(err, errSum) {
				t.Fatalf("byte %d xor %#x: error %v, want %v", i, x, err, errSum)
			}
		}
		if _, err := parseStep(line[:i]); !errors.Is(err, errSum) {
			t.Fatalf("cut at %d: error %v, want %v", i, err, errSum)
		}
	}
}

// withSum makes a line of body whose checksum is right.
func withSum(body []byte) []byte {
	return fmt.Appendf(bytes.Clone(body), `%s%016x"}`, sumMark, xxhash.Sum64(body))
}

func TestLineRefusesOtherForms(t *testing.T) {
	const head = `{"seq":1,"at":"2026-01-02T03:04:05Z","label":"x"`
	tests := []struct{ name, body, err string }{
		{"no body", ``, `no "{\"seq\":" at byte 0 of the line`},
		{"negative seq", `{"seq":-1`, `no number at byte 7 of the line`},
		{"huge seq", `{"seq":18446744073709551616`, `no number at byte 7 of the line`},
		{"bad time", `{"seq":1,"at":"yesterday","label":"x","ops":[]`, `parsing time "yesterday" as "2006-01-02T15:04:05.999999999Z07:00": cannot parse "yesterday" as "2006"`},
		{"base false", head + `,"base":false,"ops":[]`, `no ",\"ops\":[" at byte 48 of the line`},
		{"no ops", head, `no ",\"ops\":[" at byte 48 of the line`},
		{"ops not ended", head + `,"ops":[`, `no "[" at byte 56 of the line`},
		{"comma first", head + `,"ops":[,["a","b"]]`, `no "[" at byte 56 of the line`},
		{"one string", head + `,"ops":[["a"]]`, `no "," at byte 60 of the line`},
		{"bad escape", head + `,"ops":[["\x","b"]]`, `bad string at byte 57 of the line`},
		{"no end of string", head + `,"ops":[["a`, `string without an end at byte 58 of the line`},
		{"bad base64", head + `,"ops":[["a","b","!"]]`, `bad base64 at byte 69 of the line`},
		{"loose base64", head + `,"ops":[["a","b","QR=="]]`, `bad base64 at byte 72 of the line`},
		{"trailing", head + `,"ops":[] `, `more after the ops at byte 57 of the line`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parseStep(withSum([]byte(tt.body)))
			if err == nil || err.Error() != tt.err {
				t.Errorf("error\n%v, want\n%s", err, tt.err)
			}
			if errors.Is(err, errSum) {
				t.Error("a line with the right checksum counts as torn")
			}
		})
	}
}

// FuzzParseStep: what is accepted encodes and decodes to itself again.
func FuzzParseStep(f *testing.F) {
	for _, s := range sampleSteps() {
		line := appendStep(nil, s)
		f.Add(line[:len(line)-1-sumLen], true)
		f.Add(line[:len(line)-1], false)
	}
	f.Fuzz(func(t *testing.T, line []byte, sum bool) {
		if sum {
			line = withSum(line)
		}
		s, err := parseStep(line)
		if err != nil {
			return
		}
		again := appendStep(nil, s)
		s2, err := parseStep(again[:len(again)-1])
		if err != nil {
			t.Fatalf("own line %q: %v", again, err)
		}
		if third := appendStep(nil, s2); !bytes.Equal(again, third) {
			t.Errorf("%q encodes again as %q", again, third)
		}
	})
}

// FuzzReplay: a log is a prefix of good lines, a torn end, or damage.
func FuzzReplay(f *testing.F) {
	var log []byte
	for i := range 3 {
		s := sampleSteps()[0]
		s.seq = uint64(i + 1)
		log = appendStep(log, s)
	}
	f.Add(log)
	f.Add(log[:len(log)-5])
	f.Add(log[100:])
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := replay(data)
		if h.end < 0 || h.end > h.size || h.size != int64(len(data)) {
			t.Fatalf("end %d of %d, size %d", h.end, len(data), h.size)
		}
		if err == nil && h.end < h.size && bytes.IndexByte(data[h.end:len(data)-1], '\n') >= 0 {
			t.Errorf("more than one line taken for a torn one")
		}
		good, err := replay(data[:h.end])
		if err != nil || good.seq != h.seq || good.steps != h.steps {
			t.Errorf("good part alone: step %d after %d lines, error %v; with the rest %d after %d", good.seq, good.steps, err, h.seq, h.steps)
		}
	})
}
