package plan

import (
	"strings"
	"testing"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// TestTermsOfToday: a rate and a reserve given after the plan was made count at
// once in what is shown, and leave the plan as it is.
func TestTermsOfToday(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(40, 100)}, {name: "B1", samples: random(41, 100)}})
	shuffle(t, ws, upTo(200), nil)
	row := mustPlan(t, ws, testOptions())
	report := func(now *Terms) (rep Report) {
		t.Helper()
		err := ws.View(func(r store.Reader) (err error) {
			rep, err = BuildReport(t.Context(), r, ws, now)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	if rep := report(&Terms{}); rep.Plan.Seconds != 0 || !strings.Contains(strings.Join(rep.Explain(), "\n"), "time: unknown") {
		t.Errorf("hours without a rate: %+v", rep.Plan)
	}
	rep := report(&Terms{Rate: 500})
	if want := float64(row.NewTokens) / 500; !near(rep.Plan.Seconds, want) || rep.Plan.Rate != 500 || rep.Basis.RateFrom != "as given" {
		t.Errorf("%v s at %v tokens/s (%s), want %v s", rep.Plan.Seconds, rep.Plan.Rate, rep.Basis.RateFrom, want)
	}
	for _, r := range WhatIf(rep, WhatIfOptions{GPUs: 2, GPUHourPrice: 3}) {
		if r.Seconds == nil || r.Cost == nil {
			t.Fatalf("a row without hours: %+v", r)
		}
		if r.Current && !near(*r.Cost, rep.Plan.Seconds/3600*2*3) {
			t.Errorf("the planned row costs %v", *r.Cost)
		}
	}
	if rep := report(&Terms{Reserve: human.Share{Fraction: 1, Relative: true}}); rep.Plan.Decision != store.Short || rep.Plan.ShortBy < row.ExpectedBytes {
		t.Errorf("with all of the volume reserved: %s by %d", rep.Plan.Decision, rep.Plan.ShortBy)
	}
	if rep := report(nil); rep.Plan.ID != row.ID || rep.Plan.Seconds != 0 || rep.Plan.Decision != store.Fits {
		t.Errorf("the plan itself changed: %+v", rep.Plan)
	}
}

// TestBudgetInWhatIf: a budget per dataset binds every row, and the planned row
// is the plan.
func TestBudgetInWhatIf(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, []dataset{{name: "A1", samples: random(42, 300)}, {name: "B1", samples: random(43, 50)}})
	shuffle(t, ws, upTo(350), nil)
	o := testOptions()
	o.MaxDatasetTokens, o.Rate = 10_000, 100
	p := mustPlan(t, ws, o)
	rep := mustReport(t, ws)
	current := 0
	for _, r := range WhatIf(rep, WhatIfOptions{}) {
		if r.Tokens > 20_000 || r.Tokens+r.LostTokens != rep.Total.Tokens {
			t.Errorf("%d tokens kept and %d lost of %d", r.Tokens, r.LostTokens, rep.Total.Tokens)
		}
		if r.Current {
			current++
			if r.Samples != p.Samples || r.Tokens != p.Tokens || r.RawBytes != p.RawBytes || r.Approx {
				t.Errorf("the planned row is %+v, the plan %+v", r, p)
			}
		}
	}
	if current != 1 {
		t.Errorf("%d rows are the plan", current)
	}
}
