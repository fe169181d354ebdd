package plan

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// TestDrill fails at each hit of each point and plans again: the plan in force
// is the old one or the new one, and the index is that of an undisturbed run.
func TestDrill(t *testing.T) {
	want := func() []byte {
		ws := storetest.MustInit(t)
		merge(t, ws, mixed())
		shuffle(t, ws, upTo(29), nil)
		return mustRead(t, ws.PlanPath(mustPlan(t, ws, testOptions()).ID))
	}()
	for _, p := range []fault.Point{fault.PlanBeforeIndex, fault.PlanAfterIndex, fault.LedgerBeforeAppend, fault.LedgerAfterAppend, fault.LedgerAfterCommit} {
		hits := 0
		for n := int64(1); drillPlan(t, p, n, want); n++ {
			hits++
		}
		if hits == 0 {
			t.Errorf("%s is never reached", p)
		}
	}
}

func drillPlan(t *testing.T, p fault.Point, n int64, want []byte) (struck bool) {
	t.Helper()
	dir := t.TempDir()
	o := store.Options{Reserve: 64 << 10, Memory: 64 << 20}
	ws, err := store.Init(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	if err := ws.Close(); err != nil {
		t.Fatal(err)
	}
	o.FS = &fsx.FS{Faults: fault.New(p, n)}
	if ws, err = store.Open(t.Context(), dir, o); err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), ws, testOptions(), progress.Nop{})
	if struck = errors.Is(err, fault.ErrInjected); err != nil && !struck {
		t.Fatal(err)
	}
	if cerr := ws.Close(); cerr != nil && !struck {
		t.Fatal(cerr)
	}
	ws = storetest.MustOpen(t, dir)
	err = ws.View(func(r store.Reader) error {
		row, ok, err := r.Plan()
		if err == nil && ok && !slices.Equal(mustRead(t, ws.PlanPath(row.ID)), want) {
			t.Errorf("%s hit %d: the plan in force has another index", p, n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	row := mustPlan(t, ws, testOptions())
	if !slices.Equal(mustRead(t, ws.PlanPath(row.ID)), want) {
		t.Errorf("%s hit %d: the second run made another index", p, n)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "plans", "*"+fsx.TempSuffix)); err != nil || len(left) > 0 {
		t.Errorf("%s hit %d: left %v (%v)", p, n, left, err)
	}
	return struck
}

// TestRoom counts what may be reclaimed: not what is needed, pinned, in the
// trash or on another filesystem.
func TestRoom(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	o := testOptions()
	base := mustPlan(t, ws, o)
	add := func(name string, change func(*store.GenerationRow)) {
		seal(t, ws, o, base, func(g *store.GenerationRow) {
			g.Name, g.Bytes, g.Identity = name, 1000, []store.Part{{Key: "model", Value: "other"}}
			change(g)
		})
	}
	add("needed", func(g *store.GenerationRow) { g.Identity = o.Identity })
	add("abandoned", func(g *store.GenerationRow) { g.State = store.GenAbandoned })
	add("pinned", func(g *store.GenerationRow) { g.State, g.Pinned = store.GenAbandoned, "x" })
	add("trashed", func(g *store.GenerationRow) { g.State, g.Trash = store.GenTrashed, "trash/x" })
	add("building", func(g *store.GenerationRow) { g.State = store.GenBuilding })
	outside := t.TempDir()
	add("old-10k", func(g *store.GenerationRow) { g.Origin, g.Path = "adopted", filepath.Join(outside, "old") })
	add("missing", func(g *store.GenerationRow) { g.State = store.GenRetired })
	if err := os.RemoveAll(filepath.Join(ws.Dir(), "generations", "000007")); err != nil {
		t.Fatal(err)
	}
	update(t, ws, func(tx *store.Tx) error { // /proc is another filesystem
		return tx.PutGeneration(store.GenerationRow{ID: 8, Name: "elsewhere", Origin: "adopted", State: store.GenSealed, Kind: "states", Path: "/proc/self", Bytes: 1000})
	})

	row := mustPlan(t, ws, o)
	rep := mustReport(t, ws)
	var names []string
	for _, g := range rep.Room.From {
		names = append(names, g.Name)
		if g.Decision != (g.Name == "old-10k") {
			t.Errorf("%+v", g)
		}
	}
	if !slices.Equal(names, []string{"abandoned", "old-10k"}) || row.Reclaimable != 2000 {
		t.Errorf("reclaimable: %v, %d bytes", names, row.Reclaimable)
	}
	if e := rep.Room.Elsewhere; len(e) != 1 || e[0].Name != "elsewhere" || !strings.Contains(strings.Join(rep.Explain(), "\n"), "makes no room for this plan") {
		t.Errorf("on other filesystems: %+v", e)
	}
	if !slices.Equal(rep.Needs, []uint32{1}) || row.Reused != row.Samples {
		t.Errorf("needs %v, %d of %d reused", rep.Needs, row.Reused, row.Samples)
	}
}

// TestNamedRoom: a decision is held to what it names itself deletes, also what
// an interrupted deletion left of it in the trash.
func TestNamedRoom(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	base := mustPlan(t, ws, testOptions())
	for _, name := range []string{"old-a", "old-b"} {
		seal(t, ws, testOptions(), base, func(g *store.GenerationRow) { g.Name, g.Origin, g.Bytes, g.Identity = name, "adopted", 1000, nil })
	}
	trash := filepath.Join(ws.Dir(), "trash", "x")
	mustWrite(t, filepath.Join(trash, "left"), make([]byte, 5000))
	update(t, ws, func(tx *store.Tx) error {
		return tx.PutGeneration(store.GenerationRow{ID: 9, Name: "half", Origin: "adopted", State: store.GenTrashed, Kind: "states", Trash: "trash/x", Bytes: 1e9})
	})
	for _, tc := range []struct {
		names              []string
		named, reclaimable int64
	}{{nil, 0, 2000}, {[]string{"old-a"}, 1000, 2000}, {[]string{"old-a", "old-b"}, 2000, 2000}} {
		room := measured(t, ws, tc.names)
		if room.Named != tc.named || room.Reclaimable != tc.reclaimable {
			t.Errorf("%v: %d named of %d", tc.names, room.Named, room.Reclaimable)
		}
		room.Free, room.Reserve, room.Need = 500, 400, 1500
		if room.Enough() != (tc.named == 2000) {
			t.Errorf("%v: enough is %v", tc.names, room.Enough())
		}
	}
	if room := measured(t, ws, []string{"half"}); room.Named < 5000 || room.Named > 50_000 {
		t.Errorf("half deleted: %d named", room.Named)
	}
}

func measured(t *testing.T, ws *store.Workspace, names []string) (room Room) {
	t.Helper()
	err := ws.View(func(r store.Reader) (err error) {
		room, err = MeasureRoom(ws, r, human.Share{}, names, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return room
}

func TestReassess(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	o := testOptions()
	o.Reserve = human.Share{Fraction: 1, Relative: true} // nothing may be written
	row := mustPlan(t, ws, o)
	if row.Decision != store.Short || row.ShortBy <= 0 {
		t.Fatalf("%+v", row)
	}
	row.Generation = 1
	mustWrite(t, filepath.Join(ws.Dir(), "generations/000001/blob"), make([]byte, 9000))
	update(t, ws, func(tx *store.Tx) error {
		return errors.Join(tx.PutPlan(row), tx.PutBlob(store.BlobRow{Gen: 1, RawBytes: row.RawBytes / 2}),
			tx.PutGeneration(store.GenerationRow{ID: 1, Name: "own", Origin: "made", State: store.GenSealed, Kind: "states", Path: "generations/000001", Bytes: 9000}))
	})
	err := ws.View(func(r store.Reader) error {
		again, room, err := Reassess(ws, r, row, o.Reserve)
		if again.ExpectedBytes != row.ExpectedBytes || row.ShortBy-again.ShortBy < row.RawBytes/4 && room.Free == row.DiskFree {
			t.Errorf("half done, short by %d instead of %d", again.ShortBy, row.ShortBy)
		}
		if len(room.From) > 0 {
			t.Errorf("its own states would make room for it: %+v", room.From)
		}
		if again.Decision != store.Short || again.ShortBy != row.RawBytes-row.RawBytes/2-(room.Free-room.Reserve-room.Beside)-room.Reclaimable {
			t.Errorf("%+v with %+v", again, room)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestFingerprint(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	parts := func(change func(*Options)) []store.Part {
		o := testOptions()
		if change != nil {
			change(&o)
		}
		p, err := Fingerprint(t.Context(), ws, o)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	base := parts(nil)
	for key, change := range map[string]func(*Options){
		"max_tokens": func(o *Options) { o.MaxTokens = 5 }, "overlong": func(o *Options) { o.Overlong = Skip },
		"drop": func(o *Options) { o.Drop = []string{"A1_long"} }, "layers": func(o *Options) { o.Meta.Layers = []int{1} },
		"dtype": func(o *Options) { o.Meta.DType = "fp16" }, "rows": func(o *Options) { o.Rows = "cut-tail" },
		"model": func(o *Options) { o.Model = "n" }, "codec": func(o *Options) { o.Meta.Codec = "raw" },
		"engine": func(o *Options) { o.Identity[1].Value = "x" }, "gc": func(o *Options) { o.GCNames = []string{"old"} },
		"blob_size": func(o *Options) { o.BlobSize = 1 << 20 }, "max_tokens_per_dataset": func(o *Options) { o.MaxDatasetTokens = 9 },
	} {
		got := parts(change)
		for i := range got {
			if (got[i] != base[i]) != (got[i].Key == key) {
				t.Errorf("changing %s: %v, was %v", key, got[i], base[i])
			}
		}
	}
	if got := parts(func(o *Options) { o.Rate, o.Ratio, o.Reserve = 5, .5, human.Share{Absolute: 7} }); !slices.Equal(got, base) {
		t.Error("what is only foretold changes the fingerprint")
	}
	shuffle(t, ws, []uint32{1, 0}, nil)
	if got := parts(nil); got[0] == base[0] || got[0].Key != "order" {
		t.Errorf("a new order goes unseen: %v", got[0])
	}
}

func TestOptionsAreChecked(t *testing.T) {
	ws := storetest.MustInit(t)
	merge(t, ws, mixed())
	shuffle(t, ws, upTo(29), nil)
	for name, change := range map[string]func(*Options){
		"overlong": func(o *Options) { o.Overlong = "cut" }, "rows": func(o *Options) { o.Rows = "some" }, "max_tokens": func(o *Options) { o.MaxTokens = -1 },
		"dtype": func(o *Options) { o.Meta.DType = "int4" }, "layer": func(o *Options) { o.Meta.Layers = nil }, "A1_long": func(o *Options) { o.Drop = []string{"A1_lon"} },
	} {
		o := testOptions()
		change(&o)
		if _, err := Run(t.Context(), ws, o, progress.Nop{}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	shuffle(t, ws, []uint32{29}, nil)
	if _, err := Run(t.Context(), ws, testOptions(), progress.Nop{}); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("an order that names a row that is not there: %v", err)
	}
}
