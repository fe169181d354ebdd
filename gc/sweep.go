package gc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
)

// Plan says what Execute would do; it changes nothing.
func Plan(ctx context.Context, ws *store.Workspace, o Options) (*Sweep, error) {
	var s *Sweep
	err := ws.View(func(r store.Reader) error {
		p, err := newPlanning(ctx, ws, r, o)
		if err != nil {
			return err
		}
		s, err = p.sweep()
		return err
	})
	return s, err
}

type planning struct {
	ctx  context.Context
	o    Options
	r    store.Reader
	site *site
	gens []store.GenerationRow
	now  time.Time
	last time.Time // the latest time that the ledger recorded

	fallback error // why the newest sealed generation cannot be relied on
}

func newPlanning(ctx context.Context, ws *store.Workspace, r store.Reader, o Options) (*planning, error) {
	st, err := newSite(ws)
	if err != nil {
		return nil, err
	}
	gens, err := r.Generations()
	if err != nil {
		return nil, err
	}
	p := &planning{ctx: ctx, o: o, r: r, site: st, gens: gens, now: o.now()}
	for _, g := range gens {
		for _, t := range []time.Time{g.Created, g.Sealed, g.Changed} {
			if t.After(p.last) {
				p.last = t
			}
		}
	}
	p.fallback = p.checkFallback()
	return p, nil
}

func (p *planning) sweep() (*Sweep, error) {
	needs, err := planNeeds(p.ctx, p.site.ws, p.r, p.gens)
	if err != nil {
		return nil, err
	}
	verdicts, err := retain.Judge(p.r, retain.Options{Keep: p.o.Keep, Names: p.o.Names, NoFallback: p.o.NoFallback, PlanNeeds: needs})
	if err != nil {
		return nil, err
	}
	s := &Sweep{Items: []Item{}, Stale: []StaleFile{}, Unknown: []string{}}
	for _, v := range verdicts {
		if v.Class == retain.Gone {
			continue
		}
		it, err := p.item(v)
		if err != nil {
			return nil, fmt.Errorf("generation %d (%s): %w", v.Generation.ID, v.Generation.Name, err)
		}
		s.Items = append(s.Items, it)
	}
	if err := p.strays(s); err != nil {
		return nil, err
	}
	if err := p.stale(s); err != nil {
		return nil, err
	}
	for _, f := range s.Stale {
		s.Free += f.Bytes
	}
	for _, it := range s.Items {
		switch {
		case it.Action == ActionUnlink, it.Action == ActionTrash && it.Now:
			s.Free += it.Bytes
		case it.Action == ActionTrash:
			s.Trash += it.Bytes
		}
	}
	s.Hash, err = hash(s)
	return s, err
}

// hash stands for what would be done, to what, in which state.
func hash(s *Sweep) (string, error) {
	type row struct {
		ID     uint32
		Path   string
		State  store.GenState
		Action string
		Now    bool
		Bytes  int64
		Of     identity
	}
	rows := []row{}
	for _, it := range s.Items {
		if it.Action != ActionKeep {
			g := it.Generation
			rows = append(rows, row{g.ID, g.Path, g.State, it.Action, it.Now, it.Bytes, it.id})
		}
	}
	b, err := json.Marshal(struct {
		Rows  []row
		Stale []StaleFile
	}{rows, s.Stale})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), err
}

// item turns a verdict into an action, having looked at the directory.
func (p *planning) item(v retain.Verdict) (Item, error) {
	g := v.Generation
	it := Item{Generation: g, Action: ActionKeep, Reason: v.Reason, Bytes: g.Bytes}
	if len(p.o.Names) > 0 && !v.Named {
		if v.Class != retain.Keep {
			it.Reason = "not named"
		}
		return it, nil
	}
	if v.Class == retain.Decide || v.Class == retain.Free {
		if lost, err := p.lost(g, v.Named); err != nil || lost {
			it.Action, it.Bytes, it.Reason = ActionForget, 0, "its directory is missing"
			return it, err
		}
	}
	switch v.Class {
	case retain.Condemned, retain.Trashed:
		return p.resume(it)
	case retain.Keep, retain.Decide:
		it.Refused = v.Named
		return it, nil
	}
	it.Action, it.Now = ActionTrash, p.o.Now
	if g.State == store.GenSealed && g.Kind != retain.KindSamples && !p.o.NoFallback {
		if err := p.replaced(v); err != nil {
			return refuse(it, err), nil
		}
	}
	return p.inspect(it)
}

// replaced fails where nothing newer that is sound takes the place of sealed
// states, unless a recorded decision names them.
func (p *planning) replaced(v retain.Verdict) error {
	g := v.Generation
	switch {
	case v.Named && !p.o.ByHand:
		return nil
	case v.Named && g.Kind == retain.KindStates && !slices.ContainsFunc(p.gens, func(h store.GenerationRow) bool {
		return h.State == store.GenSealed && h.Kind == retain.KindStates && h.Origin != retain.Adopted && (h.ID > g.ID || h.ID != g.ID && g.Origin == retain.Adopted)
	}):
		return fmt.Errorf("%w: nothing newer is sealed: --no-fallback says that it may go all the same", ErrRefused)
	case v.Named || g.Origin != retain.Adopted:
		return p.fallback
	}
	return nil
}

// inspect looks at the directory and refuses what is not safe to take, or what
// cannot be looked at: that says nothing of the other generations.
func (p *planning) inspect(it Item) (Item, error) {
	err := p.look(&it)
	switch {
	case err == nil:
		return it, nil
	case p.ctx.Err() != nil:
		return it, context.Cause(p.ctx)
	case errors.Is(err, errMissing) && it.Generation.Origin != retain.Adopted:
		return refuse(it, fmt.Errorf("%w; 'gc --apply --name %s' takes it off the list", err, it.Generation.Name)), nil
	case errors.Is(err, errMissing), errors.Is(err, ErrRefused):
		return refuse(it, err), nil
	}
	return refuse(it, fmt.Errorf("%w: it cannot be looked at: %w", ErrRefused, err)), nil
}

var errMissing = errors.New("its directory is missing")

// lost reports whether the directory of a generation of ours is gone for good. A
// disk that is not mounted looks like that, so that it is believed only where a
// repair made all of its states anew, or where it was named.
func (p *planning) lost(g store.GenerationRow, named bool) (bool, error) {
	if g.Origin == retain.Adopted {
		return false, nil
	}
	path, err := p.site.path(g)
	if err != nil {
		return false, nil // refused for that below
	}
	if there, err := exists(path); err != nil || there {
		return false, err
	}
	if named {
		return true, nil
	}
	return store.DamagedWhole(p.r, g.ID)
}

// refusedAs is the reason for which an item was refused, as an error.
func refusedAs(it Item) error {
	if reason, ok := strings.CutPrefix(it.Reason, ErrRefused.Error()+": "); ok {
		return fmt.Errorf("%w: %s", ErrRefused, reason)
	}
	return fmt.Errorf("%w: %s", ErrRefused, it.Reason)
}

func refuse(it Item, err error) Item {
	it.Action, it.Refused, it.Reason, it.Now = ActionKeep, true, err.Error(), false
	return it
}

func (p *planning) look(it *Item) (err error) {
	g := it.Generation
	pl, err := p.site.open(g)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pl.Close()) }()
	if err := errors.Join(p.nested(g, pl.dir.Name()), spares(pl.dir.Name(), p.o.Protected)); err != nil {
		return err
	}
	if err := unix.Faccessat(int(pl.parent.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%w: %s cannot be moved: %s: %w", ErrRefused, pl.dir.Name(), pl.parent.Name(), err)
	}
	if held, err := leaseHeld(pl.dir); err != nil || held {
		return errors.Join(err, errLeased)
	}
	if who, file := openElsewhere(pl.dir.Name()); who != "" {
		return fmt.Errorf("%w: in use: %s has %s open", ErrRefused, who, file)
	}
	u, err := measure(p.ctx, pl.dir, looking{plain: g.Origin != retain.Adopted, emptied: true})
	if err != nil {
		return err
	}
	it.Bytes, it.Files, it.id = u.Freed, u.Files, u.identity
	return sameAsAdopted(g, u)
}

// nested refuses a directory that holds, or lies in, that of another
// generation which still exists.
func (p *planning) nested(g store.GenerationRow, path string) error {
	for _, h := range p.gens {
		if h.ID == g.ID || retain.IsGone(h) || h.Path == "" {
			continue
		}
		other := h.Path
		if !filepath.IsAbs(other) {
			other = filepath.Join(p.site.root, other)
		}
		if overlap(path, filepath.Clean(other)) {
			return fmt.Errorf("%w: %s overlaps generation %d (%s) at %s", ErrRefused, path, h.ID, h.Name, other)
		}
	}
	return nil
}

// sameAsAdopted refuses an adopted directory that is not what was registered.
func sameAsAdopted(g store.GenerationRow, u usage) error {
	a := g.Adopted
	switch {
	case g.Origin != retain.Adopted:
		return nil
	case a == nil:
		return fmt.Errorf("%w: generation %d has no record of what was adopted", ErrRefused, g.ID)
	case a.Inode != u.Inode || a.Dev != u.Dev && (a.Hash != u.List || a.Files != u.Files):
		return fmt.Errorf("%w: %s is another directory than the one that was adopted: adopt it again if it may go", ErrRefused, g.Path)
	case a.Dev != u.Dev && (a.Boot == "" || a.Boot == store.BootID()): // another boot may number devices anew
		return fmt.Errorf("%w: %s holds what was adopted, but on device %d:%d instead of %d:%d: if its disk was only mounted anew, adopt it again by the same name",
			ErrRefused, g.Path, unix.Major(u.Dev), unix.Minor(u.Dev), unix.Major(a.Dev), unix.Minor(a.Dev))
	case a.Hash != u.List || a.Files != u.Files:
		return fmt.Errorf("%w: %s changed since it was adopted (%s files then, %s now): adopt it again if it may go",
			ErrRefused, g.Path, human.Count(a.Files), human.Count(u.Files))
	}
	return nil
}

// resume decides about what lies in the trash or was on its way there.
func (p *planning) resume(it Item) (Item, error) {
	g := it.Generation
	inTrash, err := exists(p.site.inTrash(g))
	if err != nil {
		return it, err
	}
	inPlace := false
	if path, err := p.site.path(g); err == nil {
		if inPlace, err = exists(path); err != nil {
			return it, err
		}
	}
	switch {
	case inTrash && inPlace:
		return refuse(it, fmt.Errorf("%w: it lies both at %s and in the trash at %s", ErrRefused, g.Path, g.Trash)), nil
	case g.State == store.GenCondemned && inPlace:
		it.Action, it.Now, it.Reason = ActionTrash, p.o.Now, "condemned by a sweep that was interrupted"
		return p.inspect(it)
	case g.State == store.GenTrashed && inPlace:
		it.Action, it.Reason = ActionFinish, "an interrupted restore brought it back"
		return it, nil
	case g.State == store.GenCondemned:
		it.Action, it.Now, it.Reason = ActionTrash, p.o.Now, "moved by a sweep that was interrupted"
		return it, nil
	case g.Path == "":
		it.Action, it.Reason = ActionUnlink, "being unlinked"
	default:
		it = p.aged(it)
	}
	if g.Adopted != nil && it.Action == ActionUnlink {
		it.Files = g.Adopted.Files // at most: some may be gone
	}
	return it, nil
}

// aged decides by the time that a generation has lain in the trash.
func (p *planning) aged(it Item) Item {
	age := p.now.Sub(it.Generation.Changed)
	switch {
	case p.o.Now:
		it.Action, it.Reason = ActionUnlink, "in the trash; deleted now as asked"
	case p.now.Before(p.last):
		it.Reason = fmt.Sprintf("in the trash; the clock is %s behind the ledger, so that its age cannot be told", human.Duration(p.last.Sub(p.now)))
	case age < p.o.MinAge:
		it.Reason = fmt.Sprintf("in the trash; unlinked in %s, restorable until then", human.Duration(p.o.MinAge-age))
	default:
		it.Action, it.Reason = ActionUnlink, fmt.Sprintf("in the trash for %s", human.Duration(age))
	}
	return it
}

// checkFallback makes sure that the newest sealed generation of states, for
// whose sake older ones may go, is really there.
func (p *planning) checkFallback() error {
	for _, g := range slices.Backward(p.gens) {
		if g.State != store.GenSealed || g.Kind != retain.KindStates || g.Origin == retain.Adopted {
			continue
		}
		dir := p.site.ws.GenerationDir(g)
		m, _, err := genindex.ReadManifest(dir)
		if err != nil {
			return fmt.Errorf("%w: the generation that replaces it (%d) is not sound: %v", ErrRefused, g.ID, err)
		}
		for _, f := range m.Files {
			st, err := os.Stat(filepath.Join(dir, f.Name))
			if err == nil && st.Size() != f.Bytes {
				err = fmt.Errorf("%s has %d bytes, not %d", f.Name, st.Size(), f.Bytes)
			}
			if err != nil {
				return fmt.Errorf("%w: the generation that replaces it (%d) is not sound: %v", ErrRefused, g.ID, err)
			}
		}
		return nil
	}
	return nil
}
