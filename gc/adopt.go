package gc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// The formats of adopted directories.
const (
	FormatSpecForge   = "specforge"   // rows_G-H/data_I.ckpt or .ckpt.gz
	FormatSpeculators = "speculators" // hs_I.safetensors
	FormatModelOpt    = "modelopt"    // CONVERSATION.pt that hold aux_hidden_states
	FormatTorch       = "pt"          // other .pt files
	FormatCkpt        = "ckpt"        // other .ckpt files
)

// alien is the share of a directory's bytes that files of no known format may
// take: more, and it is not a directory of states.
const alien = 0.1

// survey tells the format of a tree from its files' names, and of .pt files
// from the head of one.
type survey struct {
	files map[string]int64
	bytes map[string]int64
	pt    string // one .pt file

	// Files of no known format: how many, their bytes, the largest.
	others, other, most int64
	such                string
}

func newPatterns() []pattern {
	return []pattern{
		{FormatSpecForge, regexp.MustCompile(`(^|/)rows_\d+-\d+/data_\d+\.ckpt(\.gz)?$`)},
		{FormatSpeculators, regexp.MustCompile(`(^|/)hs_\d+\.safetensors$`)},
		{FormatCkpt, regexp.MustCompile(`\.ckpt(\.gz)?$`)},
		{FormatTorch, regexp.MustCompile(`\.pt$`)},
	}
}

type pattern struct {
	format string
	re     *regexp.Regexp
}

func (s *survey) add(ps []pattern, rel string, st *unix.Stat_t) {
	n := st.Blocks * 512
	for _, p := range ps {
		if st.Mode&unix.S_IFMT == unix.S_IFREG && p.re.MatchString(rel) {
			s.files[p.format]++
			s.bytes[p.format] += n
			if p.format == FormatTorch && (s.pt == "" || strings.HasPrefix(filepath.Base(s.pt), "vocab_mapping")) {
				s.pt = rel
			}
			return
		}
	}
	s.others++
	s.other += n
	if n > s.most || s.such == "" {
		s.most, s.such = n, rel
	}
}

// format picks the format of most files, and refuses a directory in which
// states are not what most bytes are.
func (s *survey) format(dir *os.File) (format string, samples int64, err error) {
	var known int64
	for f, n := range s.files {
		known += s.bytes[f]
		if n > samples || n == samples && f < format {
			format, samples = f, n
		}
	}
	if samples == 0 {
		return "", 0, fmt.Errorf("%w: %s holds no hidden states that are known: no rows_*/data_*.ckpt, hs_*.safetensors, *.ckpt or *.pt", ErrRefused, dir.Name())
	}
	if float64(s.other) > alien*float64(s.other+known) {
		return "", 0, fmt.Errorf("%w: %s of %s in %s are in files of other kinds: adopt the directory that holds nothing but states",
			ErrRefused, human.Bytes(s.other), human.Bytes(s.other+known), dir.Name())
	}
	if format == FormatTorch && s.pt != "" && hasKey(dir, s.pt, "aux_hidden_states") {
		format = FormatModelOpt
	}
	return format, samples, nil
}

// hasKey looks for a dictionary key in the head of a torch file: the pickle
// comes first in its archive, and keys are plain text in it.
func hasKey(dir *os.File, rel, key string) bool {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: inside}
	fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), rel)
	head, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return errors.Join(err, f.Close()) == nil && bytes.Contains(head, []byte(key))
}

// Adopt registers a directory that eaglebatch did not make as a sealed
// generation, so that it can be listed, counted on and reclaimed. Nothing in
// it is changed. What is recorded proves later that it is still the same.
// Adopting the same directory by the same name again counts it anew. A
// directory that holds what is protected is refused.
func Adopt(ctx context.Context, ws *store.Workspace, path, name string, rep progress.Reporter, protected ...Protected) (g store.GenerationRow, err error) {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`).MatchString(name) {
		return g, fmt.Errorf("name %q: want up to 64 letters, digits, dots, dashes and underscores, a letter or digit first", name)
	}
	if path, err = filepath.Abs(path); err != nil {
		return g, err
	}
	st, err := newSite(ws)
	if err != nil {
		return g, err
	}
	old, err := adoptable(ws, st, path, name)
	if err != nil {
		return g, err
	}
	if err := spares(path, protected); err != nil {
		return g, err
	}
	pl, err := openPlace("", path)
	if err != nil {
		return g, fmt.Errorf("adopt: %w", err)
	}
	defer func() { err = errors.Join(err, pl.Close()) }()
	rep.Start(progress.Phase{Name: "adopt", Unit: "files"})
	defer rep.Finish()
	sv, ps := &survey{files: map[string]int64{}, bytes: map[string]int64{}}, newPatterns()
	u, err := measure(ctx, pl.dir, looking{each: func(rel string, st *unix.Stat_t) {
		sv.add(ps, rel, st)
		rep.Add(progress.Delta{Units: 1, Bytes: st.Blocks * 512})
	}})
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("it changes while it is looked at (%w): adopt it once nothing writes to it", err)
	}
	if err != nil {
		return g, fmt.Errorf("adopt %s: %w", path, err)
	}
	format, samples, err := sv.format(pl.dir)
	if err != nil {
		return g, err
	}
	if sv.others > 0 {
		rep.Note("%s in it are of other kinds (%s), such as %s: they go with it", human.Plural(sv.others, "file"), human.Bytes(sv.other), sv.such)
	}
	g = store.GenerationRow{ID: old.ID, Name: name, Origin: retain.Adopted, State: store.GenSealed, Kind: retain.KindStates, Path: path,
		Samples: samples, Distinct: samples, Bytes: u.Freed, Pinned: old.Pinned, Created: time.Now(),
		Adopted: &store.Adopted{Format: format, Dev: u.Dev, Inode: u.Inode, Files: u.Files, Bytes: u.Bytes, Hash: u.List, Boot: store.BootID(), Written: time.Unix(0, u.Last)}}
	err = ws.Update(ctx, "adopt", func(tx *store.Tx) error {
		if g.ID == 0 {
			if g.ID, err = tx.Next("generation"); err != nil {
				return err
			}
		}
		return tx.PutGeneration(g)
	})
	return g, err
}

// adoptable refuses a directory that overlaps the workspace or another
// generation, and a name that is taken. It returns the row where the same
// directory is adopted by that name already.
func adoptable(ws *store.Workspace, st *site, path, name string) (old store.GenerationRow, err error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return old, fmt.Errorf("adopt: %w", err)
	}
	if real != path {
		return old, fmt.Errorf("%w: %s leads through a symbolic link: adopt %s", ErrRefused, path, real)
	}
	if overlap(path, st.root) {
		return old, fmt.Errorf("%w: %s overlaps the workspace %s", ErrRefused, path, st.root)
	}
	err = ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		if err != nil {
			return err
		}
		for _, g := range gens {
			again := g.Name == name && g.Path == path && g.Origin == retain.Adopted
			inTrash := false
			if again && g.State == store.GenCondemned {
				if inTrash, err = exists(st.inTrash(g)); err != nil {
					return err
				}
			}
			switch {
			case retain.IsGone(g):
			case again && (g.State == store.GenSealed || g.State == store.GenCondemned && !inTrash):
				old = g
			case g.Name == name:
				return fmt.Errorf("%w: generation %d is named %s already", ErrRefused, g.ID, name)
			case filepath.IsAbs(g.Path) && overlap(path, g.Path):
				return fmt.Errorf("%w: %s overlaps generation %d (%s) at %s", ErrRefused, path, g.ID, g.Name, g.Path)
			}
		}
		return nil
	})
	return old, err
}
