package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"eaglebatch/store"
	"eaglebatch/store/samples"
	"eaglebatch/store/storetest"
)

func mustReport(t testing.TB, ws *store.Workspace) Report {
	t.Helper()
	var rep Report
	err := ws.View(func(r store.Reader) (err error) {
		rep, err = BuildReport(t.Context(), r, ws, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// random makes n samples whose lengths spread over some two thousand tokens.
func random(seed uint64, n int) []samples.Sample {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]samples.Sample, n)
	for i := range out {
		length := 1 + rng.IntN(1<<(2+rng.IntN(10)))
		out[i] = sample(seed<<32+uint64(i), length, rng.IntN(length))
	}
	return out
}

// brute counts by hand what a cap and drops leave.
func brute(sets []dataset, limit int64, drop []string, skip bool) (tokens, lost, emptied int64) {
	for _, d := range sets {
		for _, s := range d.samples {
			n, first := int64(len(s.IDs)), int64(slices.Index(s.Mask, 1))
			switch {
			case slices.Contains(drop, d.name), skip && limit > 0 && n > limit:
				lost += n
			case limit > 0 && first >= limit:
				lost += n
				emptied++
			case limit > 0 && n > limit:
				tokens, lost = tokens+limit, lost+n-limit
			default:
				tokens += n
			}
		}
	}
	return tokens, lost, emptied
}

func TestWhatIfEqualsBruteForce(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(1, 200)}, {name: "B1", samples: random(2, 300)}, {name: "B2", samples: random(3, 50)}}
	for _, overlong := range []string{Truncate, Skip} {
		t.Run(overlong, func(t *testing.T) {
			ws := storetest.MustInit(t)
			merge(t, ws, sets)
			shuffle(t, ws, upTo(550), nil)
			o := testOptions()
			o.Overlong = overlong
			mustPlan(t, ws, o)
			rep := mustReport(t, ws)
			caps := []int64{0, 1, 2, 3, 7, 100, 512, 1000, 2047, 5000}
			rows := WhatIf(rep, WhatIfOptions{Caps: caps, Drops: [][]string{{}, {"A1"}, {"B2", "B1"}}, DTypes: []string{"bf16"}, Rows: []string{"all"}, Codecs: []string{"raw"}})
			if len(rows) != len(caps)*3*3 {
				t.Fatalf("%d rows", len(rows))
			}
			for _, r := range rows {
				tokens, lost, _ := brute(sets, r.MaxTokens, r.Drop, overlong == Skip)
				want := tokens * int64(len(r.Layers)) * 64 * 2
				if r.Tokens != tokens || r.LostTokens != lost || r.NewTokens != tokens || r.RawBytes != want || *r.ExpectedBytes != want {
					t.Errorf("cap %d drop %v layers %v: %d tokens, %d lost, %d new, %d bytes; want %d, %d, %d bytes",
						r.MaxTokens, r.Drop, r.Layers, r.Tokens, r.LostTokens, r.NewTokens, r.RawBytes, tokens, lost, want)
				}
				if r.Seconds != nil {
					t.Errorf("hours without a rate: %v", *r.Seconds)
				}
			}
		})
	}
}

// TestWhatIfAgreesWithThePlan holds the table against what planning anew gives.
func TestWhatIfAgreesWithThePlan(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(4, 100)}, {name: "B1", samples: random(5, 200)}}
	sets[1].samples = append(sets[1].samples, sets[1].samples[:20]...) // equal samples are stored once
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, append(upTo(320), upTo(50)...), nil)
	base := testOptions()
	mustPlan(t, ws, base)
	rows := WhatIf(mustReport(t, ws), WhatIfOptions{Caps: []int64{0, 64, 300}, Drops: [][]string{{}, {"A1"}}})
	checked := 0
	for _, r := range rows {
		if r.Codec != "lz4-planes" || r.Rows != "all" || len(r.Layers) != 4 {
			continue
		}
		o := base
		o.MaxTokens, o.Drop, o.Meta.DType = r.MaxTokens, r.Drop, r.DType
		p := mustPlan(t, ws, o)
		if p.Samples != r.Samples || p.Tokens != r.Tokens || p.NewTokens != r.NewTokens || p.RawBytes != r.RawBytes {
			t.Errorf("what-if %+v\nbut the plan is %+v", r, p)
		}
		checked++
	}
	if checked != 3*2*4 {
		t.Errorf("%d rows checked", checked)
	}
}

func TestReport(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(6, 40)}, {name: "B1", samples: random(7, 200)}}
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, upTo(240), nil)
	o := testOptions()
	o.MaxTokens = 200
	p := mustPlan(t, ws, o)
	rep := mustReport(t, ws)
	var share, capShare float64
	for i, d := range rep.Datasets {
		var lens []int
		var loss int64
		for _, s := range sets[i].samples {
			lens = append(lens, len(s.IDs))
			loss += int64(len(s.IDs) - slices.Index(s.Mask, 1))
		}
		slices.Sort(lens)
		n := len(lens)
		rank := func(per int) int64 { return int64(lens[(n*per+99)/100-1]) }
		if d.P50 != rank(50) || d.P90 != rank(90) || d.P99 != rank(99) || d.Max != int64(lens[n-1]) || d.LossTokens != loss || d.Samples != int64(n) {
			t.Errorf("%s: %+v, want %d %d %d %d, %d supervised", d.Name, d, rank(50), rank(90), rank(99), lens[n-1], loss)
		}
		tokens, _, _ := brute(sets[i:i+1], 200, nil, false)
		if d.CapTokens != tokens {
			t.Errorf("%s keeps %d tokens, want %d", d.Name, d.CapTokens, tokens)
		}
		share, capShare = share+d.Share, capShare+d.CapShare
	}
	if share < .999 || share > 1.001 || capShare < .999 || capShare > 1.001 || rep.Total.CapTokens != p.Tokens {
		t.Errorf("shares add up to %v and %v; %d tokens of %d", share, capShare, rep.Total.CapTokens, p.Tokens)
	}
	var n, tokens int64
	for _, b := range rep.Bars {
		n, tokens = n+b.Samples, tokens+b.Tokens
	}
	if n != 240 || tokens != rep.Total.Tokens {
		t.Errorf("the histogram holds %d samples and %d tokens of %d", n, tokens, rep.Total.Tokens)
	}
	_, lost, emptied := brute(sets, 200, nil, false)
	_, skipped, _ := brute(sets, 200, nil, true)
	if rep.Overlong[0].LostTokens != lost || rep.Overlong[0].Samples != emptied || rep.Overlong[1].LostTokens != skipped {
		t.Errorf("overlong %+v, want %d lost, %d emptied; %d skipped", rep.Overlong, lost, emptied, skipped)
	}
	o.Overlong = Split
	split := mustPlan(t, ws, o)
	for _, r := range WhatIf(mustReport(t, ws), WhatIfOptions{}) {
		if r.Current && (r.Samples != split.Samples || r.Tokens != split.Tokens || r.LostTokens != split.LostTokens || r.RawBytes != split.RawBytes) {
			t.Errorf("what-if of splitting %+v\nbut the plan is %+v", r, split)
		}
	}
	if split.LostTokens != rep.Overlong[2].LostTokens {
		t.Errorf("split was foretold to lose %d tokens and loses %d", rep.Overlong[2].LostTokens, split.LostTokens)
	}
}

// rooms are the rooms of a report that Choices is tried on.
func withRoom(rep Report, free, reclaimable int64, names ...string) Report {
	rep.Room = Room{Total: 10 * free, Free: free, Reclaimable: reclaimable, From: []Reclaim{}}
	for _, n := range names {
		rep.Room.From = append(rep.Room.From, Reclaim{Name: n, Bytes: reclaimable / int64(len(names)), Decision: true})
	}
	return rep
}

// decided lays a choice over options and says how many generations it deletes.
func decided(t *testing.T, o Options, c Choice) (x Options, deletes int64) {
	t.Helper()
	values, err := ParseAccept(c.Accept)
	if err != nil {
		t.Fatalf("%q: %v", c.Accept, err)
	}
	for k, v := range values {
		switch k {
		case "max_tokens":
			fmt.Sscan(v, &o.MaxTokens)
		case "overlong":
			o.Overlong = v
		case "drop":
			o.Drop = strings.Split(v, "+")
		case "dtype":
			o.Meta.DType = v
		case "gc":
			deletes = int64(len(strings.Split(v, "+")))
		default:
			t.Errorf("unexpected key %s", k)
		}
	}
	return o, deletes
}

// TestChoicesFit takes every choice at its word: the plan made by it must fit.
func TestChoicesFit(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(8, 150)}, {name: "B1", samples: random(9, 250)}, {name: "B2", samples: random(10, 100)}}
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, upTo(500), nil)
	o := testOptions()
	full := mustPlan(t, ws, o)
	base := mustReport(t, ws)
	splitting := o
	splitting.MaxTokens, splitting.Overlong = 600, Split
	fullSplit := mustPlan(t, ws, splitting)
	baseSplit := mustReport(t, ws)
	for _, tc := range []struct {
		free, reclaimable int64 // in percent of the plan
		names             []string
		overlong          string
	}{{101, 0, nil, Truncate}, {50, 60, []string{"old-10k"}, Truncate}, {50, 60, []string{"old-a", "old-b"}, Truncate}, {60, 0, nil, Truncate},
		{10, 20, []string{"old"}, Truncate}, {3, 0, nil, Truncate}, {40, 0, nil, Split}} {
		t.Run(fmt.Sprint(tc.overlong, tc.free, "+", tc.reclaimable), func(t *testing.T) {
			o, full, base := o, full, base
			if tc.overlong == Split {
				o, full, base = splitting, fullSplit, baseSplit
			}
			free, gc := full.ExpectedBytes*tc.free/100, full.ExpectedBytes*tc.reclaimable/100
			choices := Choices(withRoom(base, free, gc, tc.names...))
			if (len(choices) == 0) != (tc.free > 100) {
				t.Fatalf("%d choices", len(choices))
			}
			deletes := 0
			for _, c := range choices {
				if strings.Contains(c.Accept, "gc=") {
					deletes++
				}
			}
			if fits := tc.free+tc.reclaimable > 100; tc.free <= 100 && (fits && deletes != 1 || !fits && choices[0].Accept != "") {
				t.Errorf("%d choices delete: %+v", deletes, choices)
			}
			for _, c := range choices {
				if c.Accept == "" {
					continue
				}
				x, more := decided(t, o, c)
				room := free + more*gc/max(1, int64(len(tc.names)))
				p := mustPlan(t, ws, x)
				// the report does not see empty windows after the first supervised token
				if p.ExpectedBytes > room || p.ExpectedBytes > c.Bytes || x.Overlong != Split && p.ExpectedBytes < c.Bytes || p.Samples == 0 {
					t.Errorf("%s (%s): takes %d of %d, was said to take %d", c.Text, c.Accept, p.ExpectedBytes, room, c.Bytes)
				}
			}
		})
	}
}

// TestChoicesKeepWhatIsDecided: a way out replaces the decision in force, so it
// repeats what of it stays, but for deletions.
func TestChoicesKeepWhatIsDecided(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(70, 100)}, {name: "B1", samples: random(71, 100)}})
	shuffle(t, ws, upTo(200), nil)
	o := testOptions()
	o.MaxTokens = 800
	mustPlan(t, ws, o)
	rep := reportBy(t, ws, Terms{Decided: map[string]string{"max_tokens": "800", "layers": "[2,4,6,8]", "gc": "old-a"}})
	choices := Choices(withRoom(rep, rep.Plan.ExpectedBytes/2, rep.Plan.ExpectedBytes, "old-b"))
	for _, c := range choices {
		v, err := ParseAccept(c.Accept)
		if err != nil || v["layers"] != "[2,4,6,8]" || v["max_tokens"] == "" || strings.Contains(v["gc"], "old-a") {
			t.Errorf("%s: %q: %v (%v)", c.Text, c.Accept, v, err)
		}
	}
	if len(choices) < 2 || choices[0].Accept != "gc=old-b,max_tokens=800,layers=2+4+6+8" {
		t.Errorf("%+v", choices)
	}
}

func TestParseAccept(t *testing.T) {
	for _, tc := range []struct {
		text, want, err string
	}{
		{"max_tokens=8192,drop=A1_deepswekimi,gc=old-10k", "map[drop:A1_deepswekimi gc:old-10k max_tokens:8192]", ""},
		{"drop=A1+B2,drop=A1, gc=x", "map[drop:A1+B2 gc:x]", ""},
		{"layers=2+30+58+61", "map[layers:[2,30,58,61]]", ""},
		{"rows=last-supervised+cut-tail,dtype=fp8,reserve=5%,blob_size=512MiB", "map[blob_size:512MiB dtype:fp8 reserve:5% rows:last-supervised+cut-tail]", ""},
		{"max_token=1", "", "max_tokens"},
		{"cap=1", "", "max_tokens"},
		{"max_tokens=-1", "", "number of tokens"},
		{"max_tokens=1,max_tokens=2", "", "twice"},
		{"overlong=truncat", "", "did you mean truncate"},
		{"drop=", "", "no value"},
		{"drop=A++B", "", "empty name"},
		{"layers=2+x", "", "layer ids"},
		{" , ", "", "nothing is decided"},
	} {
		got, err := ParseAccept(tc.text)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: error %v, want %q", tc.text, err, tc.err)
			}
			continue
		}
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("%q: %v, %v; want %s", tc.text, got, err, tc.want)
		}
	}
}

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		need, room, gc int64
		want           store.Decision
		short          int64
	}{{10, 10, 0, store.Fits, 0}, {11, 10, 1, store.FitsAfterGC, 0}, {11, 10, 0, store.Short, 1}, {5, -3, 4, store.Short, 4}} {
		if d, n := decide(tc.need, tc.room, tc.gc); d != tc.want || n != tc.short {
			t.Errorf("decide(%d, %d, %d) = %s, %d", tc.need, tc.room, tc.gc, d, n)
		}
	}
}

// TestCampaign is the night that was asked for: sizes of a 61-layer target of
// hidden size 7168 in bf16.
func TestCampaignSizes(t *testing.T) {
	o := testOptions()
	o.Meta.Layers, o.Meta.Hidden = []int{2, 30, 58, 61}, 7168
	s := shapeOf(o.Meta, o.Rows)
	if s.perToken() != 57344 {
		t.Errorf("%d bytes a token", s.perToken())
	}
	if tb := float64(s.perToken()) * 138.4e6 / 1e12; tb < 7.93 || tb > 7.95 {
		t.Errorf("%.3f TB", tb)
	}
	whole := blobNeeds{total: 8e12, samples: 40_000, room: 10e12, bytesPerToken: 57344}
	for _, tc := range []struct {
		change func(*blobNeeds)
		size   int64
		why    []string
	}{
		{func(n *blobNeeds) {}, 1 << 30, []string{"1.00 GiB, about 5 samples each", "default"}},
		{func(n *blobNeeds) { n.rate = 100 }, 100 * 60 * 57344, []string{"a minute's work at 100 tokens/s", "at most 1m00s"}},
		{func(n *blobNeeds) { n.memory = 512 << 20 }, 128 << 20, []string{"one sample each", "extract.memory, 512 MiB"}},
		{func(n *blobNeeds) { n.room = 16 << 30 }, 256 << 20, []string{"64th of the 16.0 GiB"}},
		{func(n *blobNeeds) { n.total = 1e6 }, minBlob, []string{"least that is worth a file"}},
		{func(n *blobNeeds) { n.total = 1 << 30 }, 64 << 20, []string{"a sixteenth of 1.00 GiB"}},
		{func(n *blobNeeds) { n.total, n.samples = 0, 0 }, minBlob, []string{"none"}},
		{func(n *blobNeeds) { n.asked = 5 << 20 }, 5 << 20, []string{"as configured"}},
	} {
		n := whole
		tc.change(&n)
		size, why := chooseBlobSize(n)
		if size != tc.size {
			t.Errorf("%+v: a blob of %d, want %d (%s)", n, size, tc.size, why)
		}
		for _, w := range tc.why {
			if !strings.Contains(why, w) {
				t.Errorf("%q does not say %q", why, w)
			}
		}
	}
}
