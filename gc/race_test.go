package gc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// traced opens a workspace whose operations are shown to trace first.
func traced(t *testing.T, dir string, trace func(fsx.Op)) *store.Workspace {
	t.Helper()
	ws, err := store.Open(t.Context(), dir, store.Options{Reserve: 64 << 10, Memory: 64 << 20, FS: &fsx.FS{Trace: trace}})
	must(t, err)
	t.Cleanup(func() { must(t, ws.Close()) })
	return ws
}

// race adopts trees named after names, closes the workspace and opens it again
// so that at is called once, before the first operation of a kind on a path
// that holds text.
func race(t *testing.T, kind fsx.Kind, text string, at func(op fsx.Op, dirs []string), names ...string) (*store.Workspace, []string) {
	t.Helper()
	work := t.TempDir()
	ws, err := store.Init(t.Context(), work, store.Options{Reserve: 64 << 10, Memory: 64 << 20})
	must(t, err)
	var dirs []string
	for _, n := range names {
		dir := filepath.Join(t.TempDir(), "hidden_states")
		fillTree(t, dir)
		mustAdopt(t, ws, dir, n)
		dirs = append(dirs, dir)
	}
	put(t, ws, "new", store.GenSealed, nil)
	must(t, ws.Close())
	struck := false
	ws = traced(t, work, func(op fsx.Op) {
		if !struck && op.Kind == kind && strings.Contains(op.Path, text) {
			struck = true
			at(op, dirs)
		}
	})
	t.Cleanup(func() {
		if !struck {
			t.Errorf("no %s of %s: nothing was raced with", kind, text)
		}
	})
	return ws, dirs
}

// swap puts another directory in the place of dir.
func swap(t *testing.T, dir string) (innocent string) {
	t.Helper()
	must(t, os.Rename(dir, dir+".away"))
	write(t, filepath.Join(dir, "precious"), 10)
	return filepath.Join(dir, "precious")
}

// TestSwappedBeforeTheRename: another directory takes the place of the one that
// was checked, between the check and the rename.
func TestSwappedBeforeTheRename(t *testing.T) {
	var precious string
	ws, dirs := race(t, fsx.OpRename, ".eaglebatch-trash", func(_ fsx.Op, d []string) { precious = swap(t, d[0]) }, "old")
	o := Options{Names: []string{"old"}, Now: true}
	_, err := Execute(t.Context(), ws, mustPlan(t, ws, o), o, progress.Nop{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "swapped for another directory") {
		t.Errorf("%v", err)
	}
	if !there(t, precious) || !there(t, filepath.Join(dirs[0]+".away", "rows_0-2000")) {
		t.Error("something was deleted, or not put back")
	}
	if g := row(t, ws, 1); g.State != store.GenSealed || g.Trash != "" {
		t.Errorf("it is %s, in the trash at %q", g.State, g.Trash)
	}
}

// TestSwappedDuringTheSweep: the second directory is replaced while the first
// one is being moved.
func TestSwappedDuringTheSweep(t *testing.T) {
	var precious string
	ws, dirs := race(t, fsx.OpRename, "old-a", func(_ fsx.Op, d []string) { precious = swap(t, d[1]) }, "old-a", "old-b")
	o := Options{Names: []string{"old-a", "old-b"}, Now: true}
	_, err := Execute(t.Context(), ws, mustPlan(t, ws, o), o, progress.Nop{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "was replaced since the sweep was planned") {
		t.Errorf("%v", err)
	}
	if !there(t, precious) || there(t, dirs[0]) || !there(t, dirs[1]+".away") {
		t.Error("the wrong directory is gone")
	}
	if g := row(t, ws, 2); g.State != store.GenSealed {
		t.Errorf("the second one is %s", g.State)
	}
}

// TestLinkDuringTheDeletion: while files are unlinked, a directory that is still
// to come becomes a link to something else.
func TestLinkDuringTheDeletion(t *testing.T) {
	precious := filepath.Join(t.TempDir(), "data_2000.ckpt.gz")
	write(t, precious, 10)
	away := filepath.Join(t.TempDir(), "away")
	ws, dirs := race(t, fsx.OpRemove, ".ckpt", func(op fsx.Op, _ []string) {
		for _, sub := range []string{"rows_0-2000", "rows_2000-4000"} {
			if other := filepath.Dir(filepath.Dir(op.Path)); filepath.Base(filepath.Dir(op.Path)) != sub && there(t, filepath.Join(other, sub)) {
				must(t, os.Rename(filepath.Join(other, sub), away))
				must(t, os.Symlink(filepath.Dir(precious), filepath.Join(other, sub)))
			}
		}
	}, "old")
	mustExecute(t, ws, Options{Names: []string{"old"}, Now: true})
	left, err := filepath.Glob(filepath.Join(filepath.Dir(dirs[0]), ".eaglebatch-trash-*"))
	must(t, err)
	if !there(t, precious) || there(t, dirs[0]) || len(left) > 0 || !there(t, away) {
		t.Errorf("the link was followed, or stayed: %v", left)
	}
}
