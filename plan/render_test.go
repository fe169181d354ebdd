package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

func renderedReport(t *testing.T) (Report, []WhatIfRow) {
	t.Helper()
	sets := []dataset{{name: "A1 <long>", samples: random(20, 60)}, {name: "B1", samples: random(21, 200)}}
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, upTo(260), nil)
	o := testOptions()
	o.MaxTokens, o.Rate = 500, 1000
	mustPlan(t, ws, o)
	rep := mustReport(t, ws)
	return rep, WhatIf(rep, WhatIfOptions{GPUs: 8, GPUHourPrice: 2.5})
}

// TestHTML checks that the page is well formed, complete and loads nothing.
func TestHTML(t *testing.T) {
	rep, rows := renderedReport(t)
	short := withRoom(rep, rep.Plan.ExpectedBytes/2, rep.Plan.ExpectedBytes, "old-10k")
	var buf bytes.Buffer
	commands := make([]string, len(Choices(short)))
	for i, c := range Choices(short) {
		commands[i] = "eaglebatch plan --accept " + c.Accept
	}
	if err := WriteHTML(&buf, short, rows, commands); err != nil {
		t.Fatal(err)
	}
	html := buf.String()
	if path := os.Getenv("EAGLEBATCH_TEST_HTML"); path != "" {
		mustWrite(t, path, buf.Bytes())
	}
	d := xml.NewDecoder(strings.NewReader(strings.Replace(html, "<!doctype html>", "", 1)))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well formed: %v", err)
		}
	}
	for _, want := range []string{"A1 &lt;long&gt;", "eaglebatch plan --accept gc=old-10k", "<polyline", "cap 500", "class=\"best"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if m := regexp.MustCompile(`(src|href|url\()\s*=?\s*["'(]?(https?:|//)|<script|@import`).FindString(html); m != "" {
		t.Errorf("the page loads something: %q", m)
	}
	if strings.Contains(html, "NaN") || strings.Contains(html, "ZgotmplZ") {
		t.Error("the page holds a value that could not be shown")
	}
}

func TestText(t *testing.T) {
	rep, rows := renderedReport(t)
	var buf bytes.Buffer
	if err := errors.Join(WriteHistogram(&buf, rep, 100), WriteOverlong(&buf, rep), WriteWhatIf(&buf, rep, Story(rep, rows), 120)); err != nil {
		t.Fatal(err)
	}
	out := buf.String()
	for _, want := range []string{"tokens a sample", "#", "overlong: truncate (planned)", "at least", "plan", "best", "lost", "fp8"} {
		if !strings.Contains(out, want) {
			t.Errorf("the text lacks %q:\n%s", want, out)
		}
	}
	for line := range strings.Lines(out[:strings.Index(out, "overlong")]) {
		if len(line) > 101 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	for _, width := range []int{120, 80} {
		buf.Reset()
		if err := WriteWhatIf(&buf, rep, rows, width); err != nil {
			t.Fatal(err)
		}
		if s := buf.String(); !strings.Contains(s, "room") || !strings.Contains(s, "cost") || (width < 120) != strings.Contains(s, "left out in 80 columns") {
			t.Errorf("in %d columns:\n%s", width, s)
		}
		for line := range strings.Lines(buf.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("%d columns in %d: %s", n, width, line)
			}
		}
	}
	if b, err := json.Marshal(rep); err != nil || !bytes.Contains(b, []byte(`"histogram"`)) {
		t.Errorf("report as JSON: %v", err)
	}
	best, current := 0, 0
	for _, r := range rows {
		if r.Best {
			best++
		}
		if r.Current {
			current++
			if r.Seconds == nil || !near(*r.Seconds, rep.Plan.Seconds) || !near(*r.Cost, *r.Seconds/3600*8*2.5) || r.RawBytes != rep.Plan.RawBytes {
				t.Errorf("the planned row %+v is not the plan %+v", r, rep.Plan)
			}
		}
	}
	if best != 1 || current != 1 {
		t.Errorf("%d rows are best, %d are the plan", best, current)
	}
}

func near(a, b float64) bool { return a > b*.999 && a < b*1.001 }

// cost is the time of an engine that needs the longer the longer a sample is.
func cost(n int64) float64 { return float64(n)*1e-3 + float64(n*n)*1e-6 }

// quadratic is what a list takes with such an engine, and a codec that saves a
// quarter; where all samples are of like length both waste a third of the time.
func quadratic(t *testing.T, list []ProbeSample) (b Bucket) {
	t.Helper()
	short, long := list[0].To, list[0].To
	for _, s := range list {
		short, long = min(short, s.To), max(long, s.To)
		n := int64(s.To - s.From)
		if n > 400 || int(s.Index) >= 300 {
			t.Errorf("probed %+v", s)
		}
		b.Samples, b.Tokens, b.Seconds, b.RawBytes, b.Bytes = b.Samples+1, b.Tokens+n, b.Seconds+cost(n), b.RawBytes+512*n, b.Bytes+384*n
	}
	if long <= 2*short {
		b.Seconds *= 1.5
	}
	return b
}

func TestProbe(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(30, 300)}, {name: "B1", samples: random(31, 300)}}
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, upTo(600), nil)
	o := testOptions()
	o.MaxTokens = 400
	plain := mustPlan(t, ws, o)
	if plain.Seconds != 0 || plain.Ratio != 0 {
		t.Errorf("hours or a ratio from nowhere: %+v", plain)
	}
	ran := 0
	run := func(_ context.Context, list []ProbeSample) (Bucket, error) {
		ran += len(list)
		return quadratic(t, list), nil
	}
	pr, err := Probe(t.Context(), ws, o, 60, run, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	if pr.Samples < 40 || pr.Samples > 300 || ran < int(pr.Samples) || len(pr.Buckets) < 5 {
		t.Errorf("%d samples probed in %d buckets, %d ran", pr.Samples, len(pr.Buckets), ran)
	}
	p := mustPlan(t, ws, o)
	var truth float64
	for _, d := range sets {
		for _, s := range d.samples {
			if tokens, _, _ := brute([]dataset{{samples: d.samples[s.Index : s.Index+1]}}, 400, nil, false); tokens > 0 {
				truth += cost(tokens)
			}
		}
	}
	if off := p.Seconds/truth - 1; off < -.1 || off > .1 {
		t.Errorf("foretold %.1f s, true %.1f s", p.Seconds, truth)
	}
	if p.Ratio < .749 || p.Ratio > .751 || p.ExpectedBytes != int64(p.Ratio*float64(p.RawBytes)) {
		t.Errorf("ratio %v, %d of %d bytes", p.Ratio, p.ExpectedBytes, p.RawBytes)
	}
	for _, r := range WhatIf(mustReport(t, ws), WhatIfOptions{}) {
		if r.Current && (*r.Seconds/p.Seconds < .999 || *r.Seconds/p.Seconds > 1.001 || *r.ExpectedBytes != p.ExpectedBytes) {
			t.Errorf("the table says %v s and %d bytes, the plan %v and %d", *r.Seconds, *r.ExpectedBytes, p.Seconds, p.ExpectedBytes)
		}
	}
	other := o
	other.Meta.Codec = "dense"
	if p := mustPlan(t, ws, other); p.Ratio != 0 {
		t.Error("a probe with another codec was used")
	}
	checkOutcome(t, ws, o, p)
}

// checkOutcome seals a generation that took a little more than was said.
func checkOutcome(t *testing.T, ws *store.Workspace, o Options, p store.PlanRow) {
	t.Helper()
	g := seal(t, ws, o, p, func(g *store.GenerationRow) { g.Seconds = p.Seconds * 1.1 })
	update(t, ws, func(tx *store.Tx) error {
		return tx.PutBlob(store.BlobRow{Gen: g.ID, Bytes: p.ExpectedBytes + p.ExpectedBytes/100, RawBytes: p.RawBytes})
	})
	err := ws.View(func(r store.Reader) error {
		out, err := Outcomes(r)
		if err != nil {
			return err
		}
		if len(out) != 1 || out[0].Generation != g.ID || out[0].BytesOff < .009 || out[0].BytesOff > .011 || out[0].SecondsOff < .09 || out[0].SecondsOff > .11 {
			t.Errorf("outcomes %+v", out)
		}
		if q := out[0].Predicted; q.BytesLow > q.Bytes || q.BytesHigh < q.Bytes || q.SecondsLow >= q.Seconds || q.SecondsHigh <= q.Seconds || q.SecondsFrom == "" {
			t.Errorf("prediction %+v", q)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestProbeFails(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	broken := func(context.Context, []ProbeSample) (Bucket, error) { return Bucket{}, errors.New("engine down") }
	if _, err := Probe(t.Context(), ws, testOptions(), 10, broken, progress.Nop{}); err == nil || !strings.Contains(err.Error(), "engine down") {
		t.Errorf("error %v", err)
	}
	failing := func(_ context.Context, l []ProbeSample) (Bucket, error) { return Bucket{Failed: int64(len(l))}, nil }
	if _, err := Probe(t.Context(), ws, testOptions(), 10, failing, progress.Nop{}); err == nil {
		t.Error("a probe without one good sample was recorded")
	}
}
