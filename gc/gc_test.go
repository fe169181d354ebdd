package gc

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
	"eaglebatch/store/storetest"
)

func TestLifeOfASupersededGeneration(t *testing.T) {
	ws, c := storetest.MustInit(t), newClock()
	old := put(t, ws, "old", store.GenSealed, nil)
	new := put(t, ws, "new", store.GenSealed, nil)
	o := Options{Keep: 1, MinAge: time.Hour, Clock: c.now}
	c.pass(time.Minute)

	s := mustExecute(t, ws, o)
	if it := item(t, s, old.ID); it.Action != ActionTrash || it.Bytes < 25000 || it.Files != 4 {
		t.Errorf("old: %+v", it)
	}
	if it := item(t, s, new.ID); it.Action != ActionKeep {
		t.Errorf("new: %+v", it)
	}
	g := row(t, ws, old.ID)
	if g.State != store.GenTrashed || there(t, ws.GenerationDir(old)) || !there(t, filepath.Join(ws.Dir(), g.Trash, "blob-000000.ebb")) {
		t.Errorf("after the first sweep: %+v", g)
	}

	c.pass(30 * time.Minute)
	if it := item(t, mustExecute(t, ws, o), old.ID); it.Action != ActionKeep || !strings.Contains(it.Reason, "30m00s") {
		t.Errorf("within the grace period: %+v", it)
	}
	c.pass(-40 * time.Minute)
	if it := item(t, mustExecute(t, ws, o), old.ID); it.Action != ActionKeep || !strings.Contains(it.Reason, "clock") {
		t.Errorf("with the clock set back: %+v", it)
	}
	c.pass(2 * time.Hour)
	if s := mustExecute(t, ws, o); item(t, s, old.ID).Action != ActionUnlink || s.Free == 0 && old.Bytes > 0 {
		t.Errorf("after the grace period: %+v", s)
	}
	if g := row(t, ws, old.ID); !retain.IsGone(g) || g.Bytes != 0 || there(t, filepath.Join(ws.TrashDir(), trashName(old))) {
		t.Errorf("at the end: %+v", g)
	}
	if s := mustPlan(t, ws, o); len(s.Items) != 1 {
		t.Errorf("a generation that is gone is still listed: %+v", s.Items)
	}
}

func TestWhatIsKept(t *testing.T) {
	for _, tc := range []struct {
		name   string
		state  store.GenState
		change func(ws *store.Workspace, g *store.GenerationRow)
		o      Options
		action string
		reason string
	}{
		{name: "superseded", state: store.GenSealed, action: ActionTrash, reason: "superseded"},
		{name: "abandoned", state: store.GenAbandoned, action: ActionTrash},
		{name: "retired", state: store.GenRetired, action: ActionTrash},
		{name: "building", state: store.GenBuilding, action: ActionKeep, reason: "being built"},
		{name: "pinned", state: store.GenAbandoned, change: func(_ *store.Workspace, g *store.GenerationRow) { g.Pinned = "mine" }, action: ActionKeep, reason: "mine"},
		{name: "among the newest two", state: store.GenSealed, o: Options{Keep: 2}, action: ActionKeep, reason: "newest 2"},
		{name: "named although kept", state: store.GenSealed, o: Options{Keep: 2, Names: []string{"g"}}, action: ActionTrash, reason: "named for deletion"},
		{name: "named by number", state: store.GenSealed, o: Options{Keep: 2, Names: []string{"1"}}, action: ActionTrash},
		{name: "another is named", state: store.GenAbandoned, o: Options{Names: []string{"new"}}, action: ActionKeep, reason: "not named"},
		{name: "named but pinned", state: store.GenSealed, change: func(_ *store.Workspace, g *store.GenerationRow) { g.Pinned = "mine" },
			o: Options{Names: []string{"g"}}, action: ActionKeep, reason: "mine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ws := storetest.MustInit(t)
			g := put(t, ws, "g", tc.state, func(g *store.GenerationRow) {
				if tc.change != nil {
					tc.change(ws, g)
				}
			})
			put(t, ws, "new", store.GenSealed, nil)
			it := item(t, mustPlan(t, ws, tc.o), g.ID)
			if it.Action != tc.action || !strings.Contains(it.Reason, tc.reason) {
				t.Errorf("%s: %s", it.Action, it.Reason)
			}
		})
	}
}

func TestNothingNewerIsSealed(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "only", store.GenSealed, nil)
	put(t, ws, "proof", store.GenSealed, func(g *store.GenerationRow) { g.Kind = retain.KindProof })
	put(t, ws, "next", store.GenBuilding, nil)
	for _, tc := range []struct {
		o    Options
		want string
	}{{Options{}, ActionKeep}, {Options{NoFallback: true}, ActionTrash}, {Options{Names: []string{"only"}}, ActionTrash},
		{Options{Names: []string{"only"}, ByHand: true}, ActionKeep}, {Options{Names: []string{"only"}, ByHand: true, NoFallback: true}, ActionTrash},
		{Options{Names: []string{"proof"}, ByHand: true}, ActionKeep}, {Options{Keep: 1, NoFallback: true}, ActionKeep}} {
		if it := item(t, mustPlan(t, ws, tc.o), g.ID); it.Action != tc.want {
			t.Errorf("%+v: %s (%s)", tc.o, it.Action, it.Reason)
		}
	}
	if _, err := Plan(t.Context(), ws, Options{Names: []string{"nonesuch"}}); !errors.Is(err, retain.ErrUnknown) {
		t.Errorf("a decision on an unknown generation: %v", err)
	}
}

func TestADamagedSuccessorReplacesNothing(t *testing.T) {
	ws := storetest.MustInit(t)
	old := put(t, ws, "old", store.GenSealed, nil)
	new := put(t, ws, "new", store.GenSealed, nil)
	storetest.Truncate(t, filepath.Join(ws.GenerationDir(new), "blob-000001.ebb"), 4999)
	it := item(t, mustExecute(t, ws, Options{}), old.ID)
	if it.Action != ActionKeep || !it.Refused || !strings.Contains(it.Reason, "4999 bytes, not 5000") {
		t.Errorf("%+v", it)
	}
}

func TestNeedsAreKept(t *testing.T) {
	ws := storetest.MustInit(t)
	base := put(t, ws, "base", store.GenAbandoned, nil)
	user := put(t, ws, "user", store.GenSealed, func(g *store.GenerationRow) { g.Needs = []uint32{base.ID} })
	put(t, ws, "new", store.GenSealed, nil)
	planned := put(t, ws, "planned", store.GenRetired, nil)
	writeIndex(t, ws.PlanPath(1), planned.ID)
	update(t, ws, func(tx *store.Tx) error { return tx.PutPlan(store.PlanRow{ID: 1}) })

	c := newClock()
	c.pass(time.Minute)
	o := Options{MinAge: time.Hour, Clock: c.now}
	s := mustExecute(t, ws, o)
	for id, want := range map[uint32]string{base.ID: "the index of generation 2 (user)", planned.ID: "the plan in force"} {
		if it := item(t, s, id); it.Action != ActionKeep || !strings.Contains(it.Reason, want) {
			t.Errorf("generation %d: %s (%s)", id, it.Action, it.Reason)
		}
	}
	// user is in the trash now and can be restored: what it needs must stay
	if it := item(t, mustPlan(t, ws, o), base.ID); row(t, ws, user.ID).State != store.GenTrashed || it.Action != ActionKeep {
		t.Errorf("base goes before its user is gone: %+v", it)
	}
	c.pass(2 * time.Hour)
	mustExecute(t, ws, o)
	if it := item(t, mustPlan(t, ws, o), base.ID); it.Action != ActionTrash {
		t.Errorf("base is kept for a user that is gone: %+v", it)
	}
}

func TestSamplesGenerations(t *testing.T) {
	ws := storetest.MustInit(t)
	for _, n := range []uint32{1, 2, 3} {
		write(t, filepath.Join(ws.SamplesDir(n), "000001.sst"), 9000)
	}
	write(t, filepath.Join(ws.Dir(), "samples", "notes", "x"), 1)
	update(t, ws, func(tx *store.Tx) error {
		return errors.Join(tx.PutDataset(store.DatasetRow{Name: "d", SamplesGen: 2}), tx.PutPhase(store.PhaseRow{Name: store.PhaseMerge, State: store.Running}))
	})
	o := Options{Now: true}
	s := mustExecute(t, ws, o)
	if there(t, ws.SamplesDir(1)) || !there(t, ws.SamplesDir(2)) || !there(t, ws.SamplesDir(3)) {
		t.Error("while a merge runs only what came before the samples in use may go")
	}
	if len(s.Unknown) != 1 || s.Unknown[0] != "samples/notes" {
		t.Errorf("unknown directories: %v", s.Unknown)
	}
	update(t, ws, func(tx *store.Tx) error {
		return tx.PutPhase(store.PhaseRow{Name: store.PhaseMerge, State: store.Done})
	})
	mustExecute(t, ws, o)
	if !there(t, ws.SamplesDir(2)) || there(t, ws.SamplesDir(3)) || !there(t, filepath.Join(ws.Dir(), "samples", "notes", "x")) {
		t.Error("superseded samples stay, or others go")
	}
}

func TestRestore(t *testing.T) {
	ws, c := storetest.MustInit(t), newClock()
	old := put(t, ws, "old", store.GenSealed, nil)
	put(t, ws, "new", store.GenSealed, nil)
	o := Options{MinAge: time.Hour, Clock: c.now}
	mustExecute(t, ws, o)
	if err := Restore(t.Context(), ws, "old"); err != nil {
		t.Fatal(err)
	}
	g := row(t, ws, old.ID)
	if g.State != store.GenSealed || g.Trash != "" || !there(t, filepath.Join(ws.GenerationDir(g), "blob-000001.ebb")) {
		t.Errorf("restored: %+v", g)
	}
	c.pass(3 * time.Hour)
	if it := item(t, mustExecute(t, ws, o), old.ID); it.Action != ActionKeep || !strings.Contains(it.Reason, "restored") {
		t.Errorf("the next sweep takes it again: %+v", it)
	}
	if err := Restore(t.Context(), ws, "old"); err == nil {
		t.Error("restored what is not in the trash")
	}
	if err := errors.Join(Unpin(t.Context(), ws, "old"), Retire(t.Context(), ws, "old")); err != nil {
		t.Fatal(err)
	}
	o.Now = true
	mustExecute(t, ws, o)
	if err := Restore(t.Context(), ws, "old"); !errors.Is(err, retain.ErrUnknown) {
		t.Errorf("restore of what is gone: %v", err)
	}
}

func TestPinAndRetire(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "g", store.GenSealed, nil)
	if err := Pin(t.Context(), ws, "g", "paper"); err != nil {
		t.Fatal(err)
	}
	if err := Retire(t.Context(), ws, "g"); err == nil || !strings.Contains(err.Error(), "paper") {
		t.Errorf("retired what is pinned: %v", err)
	}
	if err := errors.Join(Unpin(t.Context(), ws, "1"), Retire(t.Context(), ws, "1")); err != nil {
		t.Fatal(err)
	}
	if it := item(t, mustPlan(t, ws, Options{Keep: 1}), g.ID); it.Action != ActionTrash {
		t.Errorf("retired: %+v", it)
	}
	if err := Restore(t.Context(), ws, "g"); err != nil {
		t.Fatal(err)
	}
	if r := row(t, ws, g.ID); r.State != store.GenSealed || r.Pinned == "" {
		t.Errorf("its retirement taken back: %+v", r)
	}
}

func TestExecuteRefusesAChangedPlan(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "g", store.GenAbandoned, nil)
	s := mustPlan(t, ws, Options{})
	write(t, filepath.Join(ws.GenerationDir(g), "blob-000002.ebb"), 10)
	if _, err := Execute(t.Context(), ws, s, Options{}, progress.Nop{}); !errors.Is(err, ErrChanged) {
		t.Errorf("executed a plan that changed: %v", err)
	}
	if row(t, ws, g.ID).State != store.GenAbandoned || !there(t, ws.GenerationDir(g)) {
		t.Error("it was touched")
	}
}

func TestAReadersLease(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "g", store.GenAbandoned, nil)
	f, err := os.Open(filepath.Join(ws.GenerationDir(g), leaseName))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if it := item(t, mustExecute(t, ws, Options{Now: true}), g.ID); it.Action != ActionKeep || !strings.Contains(it.Reason, "lease") {
		t.Errorf("%+v", it)
	}
	// A reader that comes between plan and sweep is respected too.
	pl, err := openPlace("", ws.GenerationDir(g))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeLease(pl.dir); !errors.Is(err, errLeased) {
		t.Errorf("took a lease that a reader holds: %v", err)
	}
	if err := errors.Join(pl.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if it := item(t, mustExecute(t, ws, Options{Now: true}), g.ID); it.Action != ActionTrash {
		t.Errorf("%+v", it)
	}
}

// TestStaleFiles removes superseded plans and orders, but not those in force or
// by which a generation is being built.
func TestStaleFiles(t *testing.T) {
	ws := storetest.MustInit(t)
	for id := range uint32(5) {
		writeIndex(t, ws.PlanPath(id+1))
		write(t, ws.OrderPath(id+1), 100)
	}
	write(t, filepath.Join(filepath.Dir(ws.PlanPath(1)), "notes.txt"), 5)
	update(t, ws, func(tx *store.Tx) error {
		return errors.Join(tx.PutPlan(store.PlanRow{ID: 2, Order: 2}), tx.PutPlan(store.PlanRow{ID: 4, Order: 3}), tx.PutOrder(store.OrderRow{ID: 4}),
			tx.PutGeneration(store.GenerationRow{ID: 1, Name: "g", Origin: "made", State: store.GenBuilding, Kind: "states", Plan: 2, Path: "generations/000001"}))
	})
	s := mustExecute(t, ws, Options{})
	var left []string
	for id := range uint32(5) {
		for _, p := range []string{ws.PlanPath(id + 1), ws.OrderPath(id + 1)} {
			if there(t, p) {
				left = append(left, filepath.Base(p))
			}
		}
	}
	want := []string{"000002.ebi", "000002.ebo", "000003.ebo", "000004.ebi", "000004.ebo", "000005.ebi", "000005.ebo"}
	if !slices.Equal(left, want) || len(s.Stale) != 3 || s.Free == 0 {
		t.Errorf("left %v, want %v; %d stale", left, want, len(s.Stale))
	}
	if !there(t, filepath.Join(filepath.Dir(ws.PlanPath(1)), "notes.txt")) {
		t.Error("a file that is not a plan was removed")
	}
}

// TestReprieve: a condemnation that cannot be carried out is taken back.
func TestReprieve(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "g", store.GenAbandoned, nil)
	s := mustPlan(t, ws, Options{})
	write(t, filepath.Join(ws.TrashDir(), trashName(g), "in the way"), 1)
	if _, err := Execute(t.Context(), ws, s, Options{}, progress.Nop{}); !errors.Is(err, os.ErrExist) {
		t.Fatalf("it was renamed over something: %v", err)
	}
	if s := row(t, ws, g.ID).State; !there(t, ws.GenerationDir(g)) || s != store.GenAbandoned {
		t.Errorf("it is %s", s)
	}
}

// TestInterruptedRestore: the directory is back, the ledger does not know yet.
func TestInterruptedRestore(t *testing.T) {
	ws := storetest.MustInit(t)
	g := put(t, ws, "g", store.GenAbandoned, nil)
	mustExecute(t, ws, Options{MinAge: time.Hour})
	if err := os.Rename(filepath.Join(ws.Dir(), row(t, ws, g.ID).Trash), ws.GenerationDir(g)); err != nil {
		t.Fatal(err)
	}
	if it := item(t, mustExecute(t, ws, Options{Now: true}), g.ID); it.Action != ActionFinish {
		t.Errorf("%+v", it)
	}
	if r := row(t, ws, g.ID); r.State != store.GenAbandoned || r.Pinned == "" || r.Trash != "" || !there(t, filepath.Join(ws.GenerationDir(g), "blob-000000.ebb")) {
		t.Errorf("%+v", r)
	}
}

// TestInterruptedTrash: a rename that a killed sweep did not live to sync is
// durable before the ledger relies on it.
func TestInterruptedTrash(t *testing.T) {
	ws := storetest.MustInitFS(t, t.TempDir(), &fsx.FS{Faults: fault.New(fault.GCAfterCondemn, 1)})
	g := put(t, ws, "g", store.GenAbandoned, nil)
	if _, err := Execute(t.Context(), ws, mustPlan(t, ws, Options{}), Options{}, progress.Nop{}); !errors.Is(err, fault.ErrInjected) {
		t.Fatal(err)
	}
	to := filepath.Join(ws.Dir(), row(t, ws, g.ID).Trash)
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o777), os.Rename(ws.GenerationDir(g), to), ws.Close()); err != nil {
		t.Fatal(err)
	}
	var ops []string
	ws = storetest.MustInitFS(t, ws.Dir(), &fsx.FS{Trace: func(o fsx.Op) { ops = append(ops, string(o.Kind)+" "+filepath.Base(o.Path)) }})
	ops = nil
	mustExecute(t, ws, Options{MinAge: time.Hour})
	commit := slices.Index(ops, "commit manifest.db")
	for _, dir := range []string{"dirsync generations", "dirsync trash"} {
		if at := slices.Index(ops, dir); at < 0 || at > commit {
			t.Errorf("%s is not before the commit: %v", dir, ops)
		}
	}
	if r := row(t, ws, g.ID); r.State != store.GenTrashed {
		t.Errorf("it is %s", r.State)
	}
}
