package cli

import (
	"strings"
	"testing"

	"eaglebatch/extract/backend/native"
	"eaglebatch/extract/model"

	"github.com/google/go-cmp/cmp"
)

func TestJudgeSense(t *testing.T) {
	some := func(n int, s model.Score) []model.Score {
		out := make([]model.Score, 100)
		for i := range n {
			out[i] = s
		}
		for i := n; i < len(out); i++ {
			out[i] = model.Score{LogProb: -9, RawLogProb: -9}
		}
		return out
	}
	before := some(60, model.Score{Top1: true, LogProb: -0.1, RawTop1: true, RawLogProb: -5})
	after := some(60, model.Score{Top1: true, LogProb: -1, RawTop1: true, RawLogProb: -0.1})
	for _, c := range []struct {
		scores        []model.Score
		prenorm       bool
		verdict, says string
	}{
		{before, true, "ok", "60% after"},
		{before, false, "fail", "before the norm, and it was said"},
		{after, true, "fail", "after the norm, and it is wanted before"},
		{after, false, "ok", "60% without"},
		{some(3, model.Score{Top1: true}), true, "fail", "shifted"},
		{before[:10], true, "warn", "too few"},
	} {
		if v, d := judgeSense(c.scores, c.prenorm, 0.1); v != c.verdict || !strings.Contains(d, c.says) {
			t.Errorf("%s: %s, want %s with %q", v, d, c.verdict, c.says)
		}
	}
}

func TestSlotDocs(t *testing.T) {
	got := slotDocs(map[string]float64{"slot0_tokens_per_second": 10, "slot1_tokens_per_second": 20, "top1": 1}, []string{"http://me:secret@a:8000"})
	want := []slotDoc{{0, "http://me:xxxxx@a:8000", 10}, {1, "", 20}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestNativeMemory: doctor says beforehand that the longest samples will not
// fit, and what would help.
func TestNativeMemory(t *testing.T) {
	n := native.Need{Fixed: 10 << 20, Token: 1 << 20, MaxTokens: 64}
	for longest, verdict := range map[int]string{0: "ok", 64: "ok", 65: "warn"} {
		f := nativeMemory(n, longest)
		if f.Verdict != verdict || !strings.Contains(f.Detail, "up to 64 tokens") || verdict == "warn" && !strings.Contains(f.Detail, "extract.memory to 212") {
			t.Errorf("samples of %d tokens: %+v, want %s", longest, f, verdict)
		}
	}
}
