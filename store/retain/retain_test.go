package retain_test

import (
	"errors"
	"testing"

	"eaglebatch/store"
	"eaglebatch/store/retain"
	"eaglebatch/store/storetest"
)

func judge(t *testing.T, gens []store.GenerationRow, o retain.Options) map[string]retain.Verdict {
	t.Helper()
	ws := storetest.MustInit(t)
	var out []retain.Verdict
	err := ws.Update(t.Context(), "test", func(tx *store.Tx) error {
		for i, g := range gens {
			g.ID = uint32(i + 1)
			if err := tx.PutGeneration(g); err != nil {
				return err
			}
		}
		if err := tx.PutDataset(store.DatasetRow{Name: "d", SamplesGen: 2}); err != nil {
			return err
		}
		var err error
		out, err = retain.Judge(tx, o)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]retain.Verdict{}
	for _, v := range out {
		m[v.Generation.Name] = v
	}
	return m
}

func row(name string, s store.GenState, change ...func(*store.GenerationRow)) store.GenerationRow {
	g := store.GenerationRow{Name: name, Origin: "made", State: s, Kind: retain.KindStates, Path: "generations/x"}
	for _, c := range change {
		c(&g)
	}
	return g
}

func TestJudge(t *testing.T) {
	samples := func(path string) func(*store.GenerationRow) {
		return func(g *store.GenerationRow) { g.Kind, g.Path = retain.KindSamples, path }
	}
	gens := []store.GenerationRow{
		row("oldest", store.GenSealed),
		row("adopted", store.GenSealed, func(g *store.GenerationRow) { g.Origin = retain.Adopted }),
		row("proof", store.GenSealed, func(g *store.GenerationRow) { g.Kind = retain.KindProof }),
		row("abandoned", store.GenAbandoned),
		row("planned", store.GenRetired),
		row("gone", store.GenRetired, func(g *store.GenerationRow) { g.Path = "" }),
		row("condemned", store.GenCondemned, func(g *store.GenerationRow) { g.Pinned = "late" }),
		row("trashed", store.GenTrashed),
		row("samples-1", store.GenRetired, samples("samples/000001")),
		row("samples-2", store.GenSealed, samples("samples/000002")),
		row("newest", store.GenSealed),
		row("building", store.GenBuilding),
		row("odd", "burning"),
	}
	for _, tc := range []struct {
		name string
		o    retain.Options
		want map[string]retain.Class
	}{
		{"keep one", retain.Options{Keep: 1, PlanNeeds: []uint32{5}}, map[string]retain.Class{
			"oldest": retain.Free, "adopted": retain.Decide, "proof": retain.Free, "abandoned": retain.Free, "planned": retain.Keep, "gone": retain.Gone,
			"condemned": retain.Condemned, "trashed": retain.Trashed, "samples-1": retain.Free, "samples-2": retain.Keep, "newest": retain.Decide,
			"building": retain.Keep, "odd": retain.Keep}},
		{"keep none", retain.Options{}, map[string]retain.Class{"oldest": retain.Free, "newest": retain.Decide, "planned": retain.Free}},
		{"keep two", retain.Options{Keep: 2}, map[string]retain.Class{"oldest": retain.Decide, "newest": retain.Decide}},
		{"no fallback", retain.Options{NoFallback: true}, map[string]retain.Class{"oldest": retain.Free, "newest": retain.Free, "adopted": retain.Decide, "building": retain.Keep}},
		{"named", retain.Options{Keep: 2, Names: []string{"newest", "adopted", "gone", "12"}}, map[string]retain.Class{
			"newest": retain.Free, "adopted": retain.Free, "oldest": retain.Decide, "building": retain.Keep}},
		{"named but needed", retain.Options{Names: []string{"adopted"}, PlanNeeds: []uint32{2}}, map[string]retain.Class{"adopted": retain.Keep}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := judge(t, gens, tc.o)
			for name, want := range tc.want {
				if got[name].Class != want {
					t.Errorf("%s: %s (%s), want %s", name, got[name].Class, got[name].Reason, want)
				}
				if got[name].Reason == "" {
					t.Errorf("%s: no reason given", name)
				}
			}
		})
	}
}

// TestNeedsOutliveTheirUser: what a generation that can still come back points
// into stays; what an abandoned one pointed into does not.
func TestNeedsOutliveTheirUser(t *testing.T) {
	for state, want := range map[store.GenState]retain.Class{
		store.GenBuilding: retain.Keep, store.GenSealed: retain.Keep, store.GenRetired: retain.Keep, store.GenCondemned: retain.Keep,
		store.GenTrashed: retain.Keep, store.GenAbandoned: retain.Free,
	} {
		got := judge(t, []store.GenerationRow{row("base", store.GenRetired), row("user", state, func(g *store.GenerationRow) { g.Needs = []uint32{1} })}, retain.Options{})
		if got["base"].Class != want {
			t.Errorf("its user is %s: %s (%s), want %s", state, got["base"].Class, got["base"].Reason, want)
		}
	}
}

func TestFind(t *testing.T) {
	gens := []store.GenerationRow{{ID: 1, Name: "a", Path: "x", State: store.GenSealed}, {ID: 2, Name: "a", State: store.GenRetired}, {ID: 3, Name: "b", Path: "y", State: store.GenSealed}}
	for name, want := range map[string]uint32{"a": 1, "1": 1, "3": 3, "b": 3} {
		if g, err := retain.Find(gens, name); err != nil || g.ID != want {
			t.Errorf("%s: generation %d, %v; want %d", name, g.ID, err, want)
		}
	}
	for _, name := range []string{"c", "2", "9"} {
		if _, err := retain.Find(gens, name); !errors.Is(err, retain.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSamplesInUse(t *testing.T) {
	ws := storetest.MustInit(t)
	err := ws.Update(t.Context(), "test", func(tx *store.Tx) error {
		if err := errors.Join(tx.PutDataset(store.DatasetRow{Name: "d", SamplesGen: 2}), tx.PutPhase(store.PhaseRow{Name: store.PhaseMerge, State: store.Failed})); err != nil {
			return err
		}
		for no, want := range map[uint32]bool{1: false, 2: true, 3: true} {
			if use, why, err := retain.SamplesInUse(tx, no); err != nil || use != want || use && why == "" {
				t.Errorf("samples %d during an unfinished merge: %v (%s), %v", no, use, why, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
