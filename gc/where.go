package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// The directories of the workspace that hold generations.
const (
	generationsDir = "generations"
	samplesDir     = "samples"
)

// site knows where the generations of a workspace may lie.
type site struct {
	ws   *store.Workspace
	root string // the workspace, without symbolic links
}

func newSite(ws *store.Workspace) (*site, error) {
	abs, err := filepath.Abs(ws.Dir())
	if err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return nil, err
	}
	return &site{ws: ws, root: root}, nil
}

// path returns where a generation must lie. What was made here lies at its
// number and nowhere else; what was adopted lies outside.
func (s *site) path(g store.GenerationRow) (string, error) {
	if g.Path == "" {
		return "", fmt.Errorf("%w: generation %d has no directory any more", ErrRefused, g.ID)
	}
	if g.Origin == retain.Adopted {
		if !filepath.IsAbs(g.Path) || filepath.Clean(g.Path) != g.Path {
			return "", fmt.Errorf("%w: %q is not a clean absolute path", ErrRefused, g.Path)
		}
		if overlap(g.Path, s.root) {
			return "", fmt.Errorf("%w: the adopted %s overlaps the workspace %s", ErrRefused, g.Path, s.root)
		}
		return g.Path, nil
	}
	p := g.Path
	if filepath.IsAbs(p) {
		rel, err := filepath.Rel(s.ws.Dir(), p)
		if err != nil {
			return "", fmt.Errorf("%w: %s lies outside the workspace", ErrRefused, p)
		}
		p = rel
	}
	dir, base := filepath.Split(p)
	want := generationsDir
	if g.Kind == retain.KindSamples {
		want = samplesDir
	}
	n, err := strconv.ParseUint(base, 10, 32)
	switch {
	case filepath.Clean(dir) != want, err != nil, len(base) < 6:
		return "", fmt.Errorf("%w: generation %d lies at %q, not in %s/NNNNNN", ErrRefused, g.ID, g.Path, want)
	case g.Kind != retain.KindSamples && n != uint64(g.ID):
		return "", fmt.Errorf("%w: generation %d lies at %q, the place of another", ErrRefused, g.ID, g.Path)
	}
	return filepath.Join(s.root, p), nil
}

// open opens a generation's directory.
func (s *site) open(g store.GenerationRow) (*place, error) {
	path, err := s.path(g)
	if err != nil {
		return nil, err
	}
	root := s.root
	if g.Origin == retain.Adopted {
		root = ""
	}
	return openPlace(root, path)
}

// overlap says that one directory is, or holds, the other.
func overlap(a, b string) bool { return holds(a, b) || holds(b, a) }

func holds(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}

// spares refuses a directory that holds what is protected.
func spares(dir string, list []Protected) error {
	for _, p := range list {
		real, err := filepath.EvalSymlinks(p.Path)
		if err == nil && holds(dir, real) || holds(dir, filepath.Clean(p.Path)) {
			return fmt.Errorf("%w: %s holds %s (%s)", ErrRefused, dir, p.What, p.Path)
		}
	}
	return nil
}

// trashName is the name of a generation in a trash directory. It begins with
// the number, which is never given twice.
func trashName(g store.GenerationRow) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, g.Name)
	return fmt.Sprintf("%06d-%s", g.ID, safe[:min(len(safe), 100)])
}

// siblingTrash is the trash beside a directory that cannot be renamed into the
// workspace's.
func (s *site) siblingTrash(dir string) string {
	id := s.ws.RootID()
	return filepath.Join(filepath.Dir(dir), ".eaglebatch-trash-"+id[:min(len(id), 12)])
}

// trashFor chooses the trash directory that a directory can be renamed into:
// the workspace's where both lie on one mount, else a sibling.
func (s *site) trashFor(g store.GenerationRow, p *place) (string, error) {
	ours := filepath.Join(s.root, filepath.Base(s.ws.TrashDir()))
	if g.Origin == retain.Adopted {
		return s.siblingTrash(p.dir.Name()), nil
	}
	same, err := sameMount(p.parent, s.root, ours)
	if err != nil || same {
		return ours, err
	}
	return s.siblingTrash(p.dir.Name()), nil
}

// sameMount says whether dir and path, or root where path is not made yet, are
// on one mount, so that a rename between them works.
func sameMount(dir *os.File, root, path string) (bool, error) {
	at, err := openReal(path)
	if errors.Is(err, os.ErrNotExist) {
		at, err = openReal(root)
	}
	if err != nil {
		return false, err
	}
	a, errA := mountID(dir)
	b, errB := mountID(at)
	return a == b, errors.Join(errA, errB, at.Close())
}

func mountID(f *os.File) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("statx %s: %w", f.Name(), err)
	}
	return st.Mnt_id, nil
}

// inTrash returns the absolute path of a trashed generation, which the ledger
// keeps relative to the workspace or absolute.
func (s *site) inTrash(g store.GenerationRow) string {
	if filepath.IsAbs(g.Trash) {
		return g.Trash
	}
	return filepath.Join(s.root, g.Trash)
}

// trashDir opens the trash directory that a condemned or trashed generation
// names, and checks that it is one of ours.
func (s *site) trashDir(g store.GenerationRow) (dir *os.File, name string, err error) {
	path := s.inTrash(g)
	dirName, name := filepath.Split(path)
	dirName = filepath.Clean(dirName)
	base, id := filepath.Base(dirName), s.ws.RootID()
	ours := dirName == filepath.Join(s.root, filepath.Base(s.ws.TrashDir()))
	sibling := base == ".eaglebatch-trash-"+id[:min(len(id), 12)]
	if !ours && !sibling || name != trashName(g) {
		return nil, "", fmt.Errorf("%w: %s is not a place in a trash of this workspace", ErrRefused, path)
	}
	dir, err = openReal(dirName)
	return dir, name, err
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}
