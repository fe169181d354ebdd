package gc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/storetest"
)

// TestProtectedStays: what a configuration needs keeps a directory that was
// adopted before it did, through a symbolic link too.
func TestProtectedStays(t *testing.T) {
	ws := storetest.MustInit(t)
	dir := adoptTree(t, ws)
	put(t, ws, "new", store.GenSealed, nil)
	link := filepath.Join(t.TempDir(), "data.jsonl")
	must(t, os.Symlink(filepath.Join(dir, "rows_0-2000/data_0.ckpt"), link))
	for _, path := range []string{link, filepath.Join(dir, "rows_0-2000"), dir} {
		o := Options{Names: []string{"old"}, Now: true, Protected: []Protected{{"dataset A1", path}}}
		s := mustPlan(t, ws, o)
		if it := item(t, s, 1); !it.Refused || !strings.Contains(it.Reason, "holds dataset A1") {
			t.Errorf("%s: %+v", path, it)
		}
		if _, err := Execute(t.Context(), ws, s, o, progress.Nop{}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestLinksAreUnlinkedNotFollowed holds for links inside an adopted tree.
func TestLinksAreUnlinkedNotFollowed(t *testing.T) {
	ws := storetest.MustInit(t)
	precious := filepath.Join(t.TempDir(), "x")
	write(t, precious, 10)
	dir := filepath.Join(t.TempDir(), "states")
	write(t, filepath.Join(dir, "hs_0.safetensors"), 9000)
	must(t, os.Symlink(precious, filepath.Join(dir, "hs_1.safetensors")))
	must(t, os.Symlink(filepath.Dir(precious), filepath.Join(dir, "more")))
	mustAdopt(t, ws, dir, "x")
	mustExecute(t, ws, Options{Names: []string{"x"}, Now: true})
	if there(t, dir) || !there(t, precious) {
		t.Error("the links were followed, or stayed")
	}
}
