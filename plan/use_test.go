package plan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/storetest"
)

// shapeIdentity is the identity of a generation in a shape.
func shapeIdentity(layers []int, dtype, rows string) []store.Part {
	return []store.Part{{Key: "model", Value: "m"}, {Key: "layers", Value: joinInts(layers)}, {Key: "dtype", Value: dtype}, {Key: "rows", Value: rows}, {Key: "engine", Value: "test"}}
}

// shaped are options for a plan of one shape.
func shaped(o Options, change func(*Options)) Options {
	o.Rows = blob.RowsAll
	change(&o)
	o.Identity = shapeIdentity(o.Meta.Layers, o.Meta.DType, o.Rows)
	return o
}

// surveyed is what a plan would count, without making it.
func surveyed(t *testing.T, ws *store.Workspace, o Options) (row store.PlanRow) {
	t.Helper()
	err := ws.View(func(r store.Reader) error {
		p, err := newPlanner(ws, r, o)
		if err != nil {
			return err
		}
		err = p.survey(t.Context(), r, progress.Nop{})
		row = store.PlanRow{Tokens: p.tally.tokens, NewTokens: p.newTokens, RawBytes: p.rawBytes, Reused: p.reused}
		return errors.Join(err, p.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

func reportBy(t *testing.T, ws *store.Workspace, now Terms) (rep Report) {
	t.Helper()
	err := ws.View(func(r store.Reader) (err error) {
		rep, err = BuildReport(t.Context(), r, ws, &now)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestWhatIfCountsReuse holds every row of the table, those above the plan's
// own cap and of other shapes too, against what planning anew finds stored.
func TestWhatIfCountsReuse(t *testing.T) {
	sets := []dataset{{name: "A1", samples: random(50, 120)}, {name: "B1", samples: random(51, 200)}, {name: "B2", samples: random(52, 60)}}
	sets[1].samples = append(sets[1].samples, sets[0].samples[:15]...) // in two datasets: needed while one of them is kept
	ws := storetest.MustInit(t)
	merge(t, ws, sets)
	shuffle(t, ws, append(upTo(395), upTo(30)...), nil)
	base := shaped(testOptions(), func(o *Options) {})
	for _, change := range []func(*Options){
		func(o *Options) { o.MaxTokens, o.Drop = 100, []string{"B2"} },
		func(o *Options) { o.Drop, o.Overlong = []string{"A1"}, Truncate; o.Limit = 90 },
		func(o *Options) { o.MaxTokens, o.Meta.DType = 300, "fp8" },
		func(o *Options) { o.Meta.Layers, o.Limit = []int{8}, 50 },
	} {
		o := shaped(base, change)
		seal(t, ws, o, mustPlan(t, ws, o), nil)
	}
	for _, overlong := range []string{Truncate, Skip} {
		in := shaped(base, func(o *Options) { o.MaxTokens, o.Overlong = 64, overlong })
		mustPlan(t, ws, in)
		rows := WhatIf(reportBy(t, ws, Terms{Identity: shapeIdentity}), WhatIfOptions{Caps: []int64{0, 40, 64, 100, 101, 300, 900},
			Drops: [][]string{{}, {"A1"}, {"B1"}, {"A1", "B2"}}, DTypes: []string{"bf16", "fp8", "fp16"}, Rows: []string{blob.RowsAll}, Codecs: []string{"lz4-planes"}})
		less := 0
		for _, r := range rows {
			x := shaped(in, func(o *Options) {
				o.MaxTokens, o.Drop, o.Meta.DType, o.Meta.Layers = r.MaxTokens, r.Drop, r.DType, r.Layers
			})
			p := surveyed(t, ws, x)
			if p.Tokens != r.Tokens || p.NewTokens != r.NewTokens || p.RawBytes != r.RawBytes || !r.ReuseCounted {
				t.Errorf("%s, cap %d, drop %v, %s, layers %v: the table has %d tokens, %d new, %d bytes (reuse counted: %v); the plan %d, %d new, %d bytes",
					overlong, r.MaxTokens, r.Drop, r.DType, r.Layers, r.Tokens, r.NewTokens, r.RawBytes, r.ReuseCounted, p.Tokens, p.NewTokens, p.RawBytes)
			}
			if p.Reused > 0 {
				less++
			}
		}
		if less < len(rows)/3 {
			t.Errorf("%s: only %d of %d rows reuse anything", overlong, less, len(rows))
		}
	}
}

// TestWhatIfSaysWhatItDoesNotCount: where states may be stored that cannot be
// told without reading tokens, or whose identity nobody names, the row says so
// and counts too much rather than too little.
func TestWhatIfSaysWhatItDoesNotCount(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(53, 100)}, {name: "B1", samples: random(54, 100)}})
	shuffle(t, ws, upTo(200), nil)
	o := shaped(testOptions(), func(o *Options) { o.MaxTokens, o.Overlong = 128, Split })
	seal(t, ws, o, mustPlan(t, ws, o), nil)
	mustPlan(t, ws, o)
	rep := reportBy(t, ws, Terms{Identity: shapeIdentity})
	unseen := 0
	for _, r := range WhatIf(rep, WhatIfOptions{Drops: [][]string{{}, {"A1"}}}) {
		if r.DType != "bf16" || len(r.Layers) != 4 || r.Rows != blob.RowsAll || r.Codec != "lz4-planes" {
			continue
		}
		longest := rep.Datasets[1].Max
		if len(r.Drop) == 0 {
			longest = rep.Total.Max
		}
		if want := r.Current || r.MaxTokens == 0 || r.MaxTokens >= longest; r.ReuseCounted != want {
			t.Errorf("cap %d drop %v: reuse counted: %v", r.MaxTokens, r.Drop, r.ReuseCounted)
		}
		if !r.ReuseCounted {
			unseen++
		}
		if p := mustPlan(t, ws, shaped(o, func(o *Options) { o.MaxTokens, o.Drop = r.MaxTokens, r.Drop })); p.NewTokens > r.NewTokens {
			t.Errorf("cap %d drop %v: %d new tokens, the plan has %d", r.MaxTokens, r.Drop, r.NewTokens, p.NewTokens)
		}
	}
	if unseen == 0 {
		t.Error("every row was counted: nothing was split")
	}
	rows := WhatIf(reportBy(t, ws, Terms{}), WhatIfOptions{})
	for _, r := range rows {
		if other := r.DType != "bf16"; other && r.ReuseCounted {
			t.Fatalf("nobody says what identity %s has, yet reuse is counted: %+v", r.DType, r)
		}
	}
	if got := fmt.Sprint(notes(Report{}, rows)); !strings.Contains(got, "not counted") {
		t.Errorf("notes: %s", got)
	}
}

// TestPlannedRowOnceSealed: the planned row stays the plan when its own
// generation holds all of it.
func TestPlannedRowOnceSealed(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(55, 100)}})
	shuffle(t, ws, upTo(100), nil)
	for _, rate := range []float64{0, 500} {
		o := shaped(testOptions(), func(o *Options) { o.Rate, o.Meta.Layers = rate, []int{2, 4, 6 + int(rate)} })
		p := mustPlan(t, ws, o)
		update(t, ws, func(tx *store.Tx) error {
			p.Generation = 1 + uint32(rate)
			return tx.PutPlan(p)
		})
		seal(t, ws, o, p, func(g *store.GenerationRow) { g.ID, g.Name = p.Generation, genName(p.Generation) })
		for _, r := range WhatIf(reportBy(t, ws, Terms{Rate: rate, Identity: shapeIdentity}), WhatIfOptions{GPUs: 2, GPUHourPrice: 1}) {
			if !r.Current {
				continue
			}
			if r.NewTokens != p.NewTokens || r.RawBytes != p.RawBytes || (r.Seconds == nil) != (rate == 0) || r.Decision != store.Fits {
				t.Errorf("%+v, the plan %+v", r, p)
			}
			if rate > 0 && (!near(*r.Seconds, p.Seconds) || !near(*r.Cost, p.Seconds/1800)) {
				t.Errorf("%v s for %v, planned %v s", *r.Seconds, *r.Cost, p.Seconds)
			}
		}
	}
}
