package gc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// adoptTree makes a tree that eaglebatch did not make and adopts it as "old".
func adoptTree(t testing.TB, ws *store.Workspace) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hidden_states")
	fillTree(t, dir)
	mustAdopt(t, ws, dir, "old")
	return dir
}

func fillTree(t testing.TB, dir string) {
	t.Helper()
	for _, f := range []string{"rows_0-2000/data_0.ckpt", "rows_0-2000/data_1.ckpt", "rows_2000-4000/data_2000.ckpt.gz"} {
		write(t, filepath.Join(dir, f), 10000)
	}
}

func mustAdopt(t testing.TB, ws *store.Workspace, dir, name string) store.GenerationRow {
	t.Helper()
	g, err := Adopt(t.Context(), ws, dir, name, progress.Nop{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAdoptedFormats(t *testing.T) {
	for _, tc := range []struct {
		format  string
		files   []string
		content string
		samples int64
	}{
		{FormatSpecForge, []string{"rows_0-2000/data_0.ckpt", "rows_0-2000/data_7.ckpt.gz", "vocab_mapping/vocab_mapping.pt"}, "", 2},
		{FormatSpeculators, []string{"hs_0.safetensors", "hs_12.safetensors"}, "", 2},
		{FormatModelOpt, []string{"conv-1.pt", "conv-2.pt", "conv-3.pt"}, "PK..data.pkl..aux_hidden_states..", 3},
		{FormatTorch, []string{"0/data_0.pt"}, "PK..data.pkl", 1},
		{FormatCkpt, []string{"rank_0/data_0.ckpt"}, "", 1},
	} {
		t.Run(tc.format, func(t *testing.T) {
			ws := storetest.MustInit(t)
			dir := filepath.Join(t.TempDir(), "states")
			for _, f := range tc.files {
				write(t, filepath.Join(dir, f), 9000)
				if err := os.WriteFile(filepath.Join(dir, f), append([]byte(tc.content), make([]byte, 9000)...), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			g := mustAdopt(t, ws, dir, "x")
			if g.Adopted.Format != tc.format || g.Samples != tc.samples || g.Adopted.Files != int64(len(tc.files)) {
				t.Errorf("%+v %+v", g, g.Adopted)
			}
		})
	}
}

func TestAdoptedSize(t *testing.T) {
	ws := storetest.MustInit(t)
	root := t.TempDir()
	dir := filepath.Join(root, "states")
	write(t, filepath.Join(dir, "hs_0.safetensors"), 40960)
	for _, l := range []string{"states/hs_1.safetensors", "states/hs_2.safetensors"} { // one file, three names
		if err := os.Link(filepath.Join(dir, "hs_0.safetensors"), filepath.Join(root, l)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "hs_3.safetensors"), 40960) // also named elsewhere: deleting frees nothing of it
	if err := os.Link(filepath.Join(dir, "hs_3.safetensors"), filepath.Join(root, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "hs_4.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<30), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	last := time.Now().Add(-30 * 24 * time.Hour).Truncate(time.Second)
	for i := range 5 {
		must(t, os.Chtimes(filepath.Join(dir, fmt.Sprintf("hs_%d.safetensors", i)), last, last.Add(-time.Duration(i)*time.Hour)))
	}
	last = last.Add(-2 * time.Hour) // three names of one file have the time that was set last
	var dirStat unix.Stat_t
	if err := unix.Stat(dir, &dirStat); err != nil {
		t.Fatal(err)
	}
	g := mustAdopt(t, ws, dir, "x")
	if want := 2*40960 + dirStat.Blocks*512; g.Adopted.Bytes != want || g.Bytes != want-40960 || g.Adopted.Files != 5 {
		t.Errorf("%d bytes of which %d are freed, in %d files; want %d and %d in 5", g.Adopted.Bytes, g.Bytes, g.Adopted.Files, want, want-40960)
	}
	if !g.Adopted.Written.Equal(last) {
		t.Errorf("written last at %s, not %s", g.Adopted.Written, last)
	}
}

func TestAdoptRefuses(t *testing.T) {
	ws := storetest.MustInit(t)
	dir := adoptTree(t, ws)
	parent := filepath.Dir(dir)
	write(t, filepath.Join(parent, "docs", "thesis.tex"), 9000)
	write(t, filepath.Join(parent, "mixed", "a.pt"), 9000)
	write(t, filepath.Join(parent, "mixed", "thesis.tex"), 90000)
	write(t, filepath.Join(parent, "good", "hs_1.safetensors"), 9)
	link := filepath.Join(parent, "link")
	if err := os.Symlink(filepath.Join(parent, "good"), link); err != nil {
		t.Fatal(err)
	}
	put(t, ws, "gen", store.GenSealed, nil)
	data := filepath.Join(parent, "both", "more", "tokenized_data.jsonl")
	write(t, filepath.Join(parent, "both", "hs_1.safetensors"), 90000)
	write(t, data, 9)
	for _, tc := range []struct{ name, path, as, want string }{
		{"inside the workspace", filepath.Join(ws.Dir(), "generations"), "x", "overlaps the workspace"},
		{"around the workspace", filepath.Dir(ws.Dir()), "x", "overlaps the workspace"},
		{"nested", filepath.Join(dir, "rows_0-2000"), "x", "overlaps generation"},
		{"around another", parent, "x", "overlaps generation"},
		{"the same by another name", dir, "x", "overlaps generation"},
		{"name taken", filepath.Join(parent, "good"), "gen", "is named gen already"},
		{"link", link, "x", "symbolic link"},
		{"nothing known", filepath.Join(parent, "docs"), "x", "no hidden states"},
		{"mostly other files", filepath.Join(parent, "mixed"), "x", "files of other kinds"},
		{"a file", filepath.Join(parent, "good", "hs_1.safetensors"), "x", "not a directory"},
		{"bad name", filepath.Join(parent, "good"), "../x", "letters, digits"},
		{"missing", filepath.Join(parent, "nonesuch"), "x", "no such file"},
		{"a dataset in it", filepath.Join(parent, "both"), "x", "holds dataset B1"},
	} {
		if _, err := Adopt(t.Context(), ws, tc.path, tc.as, progress.Nop{}, Protected{"dataset B1", data}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	again := mustAdopt(t, ws, dir, "old")
	if again.ID != 1 {
		t.Errorf("adopting again made generation %d", again.ID)
	}
}

func TestAdoptedGoesOnlyByName(t *testing.T) {
	ws := storetest.MustInit(t)
	dir := adoptTree(t, ws)
	if it := item(t, mustPlan(t, ws, Options{Names: []string{"old"}, Now: true, ByHand: true}), 1); !it.Refused || !strings.Contains(it.Reason, "nothing newer is sealed") {
		t.Fatalf("%+v", it)
	}
	put(t, ws, "new", store.GenSealed, nil)
	if it := item(t, mustExecute(t, ws, Options{Now: true}), 1); it.Action != ActionKeep || !there(t, dir) {
		t.Fatalf("%+v", it)
	}
	s := mustPlan(t, ws, Options{Names: []string{"old"}, Now: true, ByHand: true})
	if it := item(t, s, 1); it.Action != ActionTrash || s.Free != it.Bytes || it.Bytes < 30000 {
		t.Fatalf("%+v", s)
	}
	mustExecute(t, ws, Options{Names: []string{"old"}, Now: true})
	if there(t, dir) {
		t.Error("it is still there")
	}
	if s := mustExecute(t, ws, Options{Names: []string{"old"}, Now: true}); len(s.Items) != 1 {
		t.Errorf("the same decision again: %+v", s.Items)
	}
}

// attempt is a way to make gc take what it must not.
type attempt struct {
	name   string
	tamper func(t *testing.T, ws *store.Workspace, dir string)
	want   string // in the reason of the refusal
}

func attempts() []attempt {
	return []attempt{
		{"changed file", func(t *testing.T, _ *store.Workspace, dir string) {
			write(t, filepath.Join(dir, "rows_0-2000/data_0.ckpt"), 10001)
		}, "changed since it was adopted"},
		{"added file", func(t *testing.T, _ *store.Workspace, dir string) { write(t, filepath.Join(dir, "precious.txt"), 1) }, "changed since it was adopted"},
		{"swapped directory", func(t *testing.T, _ *store.Workspace, dir string) {
			must(t, os.Rename(dir, dir+".away"))
			must(t, os.CopyFS(dir, os.DirFS(dir+".away")))
		}, "another directory"},
		{"symbolic link", func(t *testing.T, _ *store.Workspace, dir string) {
			must(t, os.Rename(dir, dir+".away"))
			must(t, os.Symlink(dir+".away", dir))
		}, "symbolic link"},
		{"link on the way", func(t *testing.T, _ *store.Workspace, dir string) {
			p := filepath.Dir(dir)
			must(t, os.Rename(p, p+".away"))
			must(t, os.Symlink(p+".away", p))
			t.Cleanup(func() { must(t, os.Remove(p)); must(t, os.Rename(p+".away", p)) })
		}, "symbolic link"},
		{"open in another process", func(t *testing.T, _ *store.Workspace, dir string) {
			holdOpen(t, filepath.Join(dir, "rows_0-2000/data_0.ckpt"))
		}, "in use: process"},
		{"missing", func(t *testing.T, _ *store.Workspace, dir string) { must(t, os.RemoveAll(dir)) }, "missing"},
		{"mount inside", func(t *testing.T, _ *store.Workspace, dir string) {
			bind(t, t.TempDir(), filepath.Join(dir, "rows_0-2000"))
		}, "mount point"},
		{"mount itself", func(t *testing.T, _ *store.Workspace, dir string) { bind(t, dir, dir) }, "mount point"},
		{"nested generation", func(t *testing.T, ws *store.Workspace, dir string) {
			update(t, ws, func(tx *store.Tx) error {
				return tx.PutGeneration(store.GenerationRow{ID: 9, Name: "inner", Origin: "adopted", State: store.GenSealed, Kind: "states", Path: filepath.Join(dir, "rows_0-2000")})
			})
		}, "overlaps generation 9"},
		{"row pointing at the workspace", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Path = ws.Dir() })
		}, "overlaps the workspace"},
		{"row pointing at the root", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Path = "/" })
		}, "overlaps the workspace"},
		{"row with dots", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Path = dir + "/../hidden_states" })
		}, "clean absolute path"},
		{"made row outside", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Origin, g.Adopted = "made", nil })
		}, "not in generations"},
		{"made row in another's place", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Origin, g.Adopted, g.Path = "made", nil, "generations/000002" })
		}, "the place of another"},
		{"another device in the same boot", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Adopted.Dev++ })
		}, "only mounted anew"},
		{"another device in another boot, and changed", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Adopted.Dev++; g.Adopted.Boot = "before" })
			write(t, filepath.Join(dir, "rows_0-2000/data_0.ckpt"), 10001)
		}, "another directory"},
		{"proof lost", func(t *testing.T, ws *store.Workspace, dir string) {
			repoint(t, ws, func(g *store.GenerationRow) { g.Adopted = nil })
		}, "no record"},
	}
}

// TestAttemptsToDeleteSomethingElse tries to make gc take what it must not.
func TestAttemptsToDeleteSomethingElse(t *testing.T) {
	o := Options{Names: []string{"old"}, Now: true}
	for _, tc := range attempts() {
		t.Run(tc.name, func(t *testing.T) {
			ws := storetest.MustInit(t)
			dir := adoptTree(t, ws)
			gen := put(t, ws, "new", store.GenSealed, nil)
			before := mustPlan(t, ws, o)
			tc.tamper(t, ws, dir)
			if _, err := Execute(t.Context(), ws, before, o, progress.Nop{}); !errors.Is(err, ErrChanged) {
				t.Errorf("the swap between plan and apply went unseen: %v", err)
			}
			s := mustPlan(t, ws, o)
			if _, err := Execute(t.Context(), ws, s, o, progress.Nop{}); !errors.Is(err, ErrRefused) {
				t.Errorf("a decision that cannot be carried out went unsaid: %v", err)
			}
			it := item(t, s, 1)
			if it.Action != ActionKeep || !it.Refused || !strings.Contains(it.Reason, tc.want) {
				t.Errorf("%s (refused %v): %s; want %q", it.Action, it.Refused, it.Reason, tc.want)
			}
			if !there(t, filepath.Join(ws.GenerationDir(gen), "blob-000000.ebb")) {
				t.Error("another generation was deleted")
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holdOpen lets another process read a file for as long as the test lasts.
func holdOpen(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	cmd := exec.Command("sleep", "600")
	cmd.Stdin = f
	must(t, errors.Join(cmd.Start(), f.Close()))
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Error("it ended by itself")
		}
	})
}

func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("no bind mounts here (needs root): %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(to, unix.MNT_DETACH)) })
}

func repoint(t *testing.T, ws *store.Workspace, change func(*store.GenerationRow)) {
	t.Helper()
	g := row(t, ws, 1)
	change(&g)
	update(t, ws, func(tx *store.Tx) error { return tx.PutGeneration(g) })
}

// TestDeviceNumberedAnew: after a reboot a disk may have another number; what
// was adopted is then known by all the rest. Within one boot it takes adopting
// it again, also where an interrupted sweep had condemned it.
func TestDeviceNumberedAnew(t *testing.T) {
	o := Options{Names: []string{"old"}, Now: true}
	ws := storetest.MustInit(t)
	dir := adoptTree(t, ws)
	repoint(t, ws, func(g *store.GenerationRow) { g.Adopted.Dev++; g.Adopted.Boot = "the one before" })
	mustExecute(t, ws, o)
	if there(t, dir) {
		t.Error("it is still there after a reboot")
	}
	ws = storetest.MustInit(t)
	dir = adoptTree(t, ws)
	repoint(t, ws, func(g *store.GenerationRow) {
		g.Adopted.Dev++
		g.State, g.Trash = store.GenCondemned, filepath.Join(filepath.Dir(dir), "trash", "x")
	})
	if it := item(t, mustPlan(t, ws, o), 1); !it.Refused {
		t.Errorf("%+v", it)
	}
	if g := mustAdopt(t, ws, dir, "old"); g.ID != 1 || g.State != store.GenSealed {
		t.Errorf("adopted again: %+v", g)
	}
	mustExecute(t, ws, o)
	if there(t, dir) {
		t.Error("it is still there, adopted again")
	}
}

// TestTrashIsNotFollowed tampers with what lies in the trash.
func TestTrashIsNotFollowed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		tamper func(t *testing.T, ws *store.Workspace, trash string) (precious string)
		want   string
	}{
		{"link in the trash", func(t *testing.T, ws *store.Workspace, trash string) string {
			p := filepath.Join(t.TempDir(), "precious")
			write(t, filepath.Join(p, "x"), 1)
			must(t, os.RemoveAll(trash))
			must(t, os.Symlink(p, trash))
			return filepath.Join(p, "x")
		}, "symbolic link"},
		{"mount in the trash", func(t *testing.T, ws *store.Workspace, trash string) string {
			p := t.TempDir()
			write(t, filepath.Join(p, "x"), 1)
			must(t, os.Mkdir(filepath.Join(trash, "sub"), 0o777))
			bind(t, p, filepath.Join(trash, "sub"))
			return filepath.Join(p, "x")
		}, "mount point"},
		{"row pointing elsewhere", func(t *testing.T, ws *store.Workspace, trash string) string {
			p := filepath.Join(t.TempDir(), "000001-g")
			write(t, filepath.Join(p, "x"), 1)
			repoint(t, ws, func(g *store.GenerationRow) { g.Trash = p })
			return filepath.Join(p, "x")
		}, "not a place in a trash"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ws := storetest.MustInit(t)
			put(t, ws, "g", store.GenAbandoned, nil)
			mustExecute(t, ws, Options{})
			precious := tc.tamper(t, ws, filepath.Join(ws.Dir(), row(t, ws, 1).Trash))
			o := Options{Now: true}
			_, err := Execute(t.Context(), ws, mustPlan(t, ws, o), o, progress.Nop{})
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if !there(t, precious) {
				t.Error("something else was deleted")
			}
		})
	}
}
