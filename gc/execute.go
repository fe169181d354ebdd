package gc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fault"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// lowSpace is the free space below which the ledger may lack room to record
// what is deleted: reserve.bin is then given up for it.
const lowSpace = 32 << 20

// Execute carries out a sweep whose hash still holds, and returns how much
// more is free afterwards on the filesystems it touched, as they say
// themselves.
func Execute(ctx context.Context, ws *store.Workspace, s *Sweep, o Options, rep progress.Reporter) (freed int64, err error) {
	fresh, err := Plan(ctx, ws, o)
	if err != nil {
		return 0, err
	}
	if fresh.Hash != s.Hash {
		return 0, fmt.Errorf("%w (it was %s and is %s)", ErrChanged, s.Hash, fresh.Hash)
	}
	for _, it := range fresh.Items {
		if it.Refused && len(o.Names) > 0 {
			return 0, fmt.Errorf("generation %d (%s) was named, but %w", it.Generation.ID, it.Generation.Name, refusedAs(it))
		}
	}
	st, err := newSite(ws)
	if err != nil {
		return 0, err
	}
	x := &executor{ctx: ctx, ws: ws, fs: ws.FS(), site: st, o: o, rep: rep, spaces: map[uint64]space{}}
	rep.Start(progress.Phase{Name: store.PhaseGC, Unit: "files", Total: fresh.files()})
	defer rep.Finish()
	sp, err := fsx.SpaceAt(ws.Dir())
	if err != nil {
		return 0, err
	}
	if sp.Free < lowSpace {
		if err := ws.ReleaseReserve(); err != nil {
			return 0, err
		}
		defer func() {
			if rerr := ws.RestoreReserve(); !errors.Is(rerr, store.ErrDiskFull) {
				err = errors.Join(err, rerr)
			}
		}()
	}
	if err := x.stale(fresh); err != nil {
		return 0, err
	}
	for _, it := range fresh.Items {
		if err := x.item(it); err != nil {
			return x.freed(), fmt.Errorf("generation %d (%s): %w", it.Generation.ID, it.Generation.Name, err)
		}
	}
	return x.freed(), x.sweepTemp()
}

// files is how many files the sweep unlinks, as far as that is known.
func (s *Sweep) files() int64 {
	var n int64
	for _, it := range s.Items {
		if it.Action == ActionTrash && it.Now || it.Action == ActionUnlink {
			n += it.Files
		}
	}
	return n
}

type executor struct {
	ctx    context.Context
	ws     *store.Workspace
	fs     *fsx.FS
	site   *site
	o      Options
	rep    progress.Reporter
	spaces map[uint64]space // by device
}

type space struct {
	path   string
	before int64
}

func (x *executor) item(it Item) error {
	g := it.Generation
	switch it.Action {
	case ActionKeep:
		return nil
	case ActionFinish:
		if err := x.durable(g); err != nil {
			return err
		}
		return x.restored(g)
	case ActionUnlink:
		return x.unlink(g)
	case ActionForget:
		return x.gone(g, nil)
	}
	g, err := x.trash(it)
	if errors.Is(err, errLeased) && len(x.o.Names) == 0 {
		x.rep.Note("generation %d (%s) is kept: a reader took its lease", g.ID, g.Name)
		return nil
	}
	if err != nil || !it.Now {
		return err
	}
	return x.unlink(g)
}

// trash condemns a generation and renames it into a trash directory.
func (x *executor) trash(it Item) (g store.GenerationRow, err error) {
	g = it.Generation
	if g.State == store.GenCondemned {
		if moved, err := exists(x.site.inTrash(g)); err != nil || moved {
			return x.trashed(g, errors.Join(err, x.durable(g)))
		}
	}
	pl, err := x.site.open(g)
	if err != nil {
		return g, err
	}
	defer func() { err = errors.Join(err, pl.Close()) }()
	dev, ino, err := inode(pl.dir)
	if err != nil {
		return g, err
	}
	if dev != it.id.Dev || ino != it.id.Inode {
		return g, fmt.Errorf("%w: %s was replaced since the sweep was planned", ErrRefused, pl.dir.Name())
	}
	lease, err := takeLease(pl.dir)
	if err != nil {
		return g, err
	}
	if lease != nil {
		defer func() { err = errors.Join(err, lease.Close()) }()
	}
	was := g
	if g, err = x.condemn(g, pl); err != nil {
		return g, err
	}
	if err := x.move(g, pl, it.id); err != nil {
		return g, errors.Join(err, x.reprieve(was, g))
	}
	return x.trashed(g, x.fs.Point(fault.GCAfterTrash))
}

// durable makes a rename durable that an earlier attempt did not live to sync.
func (x *executor) durable(g store.GenerationRow) error {
	path, err := x.site.path(g)
	if err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(x.site.inTrash(g))} {
		if err := x.fs.SyncDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// condemn records that a generation goes, and where to.
func (x *executor) condemn(g store.GenerationRow, pl *place) (store.GenerationRow, error) {
	if err := x.fs.Point(fault.GCBeforeCondemn); err != nil {
		return g, err
	}
	dir, err := x.site.trashFor(g, pl)
	if err != nil {
		return g, err
	}
	err = x.ws.Update(x.ctx, "condemn", func(tx *store.Tx) error {
		if g.ID == 0 { // a samples directory that had no row
			if g.ID, err = tx.Next("generation"); err != nil {
				return err
			}
			g.Created = x.o.now()
		}
		g.State, g.Changed = store.GenCondemned, x.o.now()
		g.Trash = filepath.Join(dir, trashName(g))
		if rel, err := filepath.Rel(x.site.root, g.Trash); err == nil && filepath.IsLocal(rel) {
			g.Trash = rel
		}
		return tx.PutGeneration(g)
	})
	if err != nil {
		return g, err
	}
	return g, x.fs.Point(fault.GCAfterCondemn)
}

// move renames the directory into the trash and makes sure that what arrived
// is what was meant.
func (x *executor) move(g store.GenerationRow, pl *place, id identity) error {
	to := x.site.inTrash(g)
	if err := x.fs.MkdirAll(filepath.Dir(to)); err != nil {
		return err
	}
	dir, name, err := x.site.trashDir(g)
	if err != nil {
		return err
	}
	defer dir.Close()
	x.fs.Note(fsx.OpRename, to, 0)
	if err := unix.Renameat2(int(pl.parent.Fd()), pl.name, int(dir.Fd()), name, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: pl.dir.Name(), New: to, Err: err}
	}
	moved, err := openBelow(dir, name)
	if err == nil {
		var dev, ino uint64
		dev, ino, err = inode(moved)
		err = errors.Join(err, moved.Close())
		if err == nil && (dev != id.Dev || ino != id.Inode) {
			err = fmt.Errorf("%w: %s was swapped for another directory at the last moment", ErrRefused, pl.dir.Name())
		}
	}
	if err != nil {
		x.fs.Note(fsx.OpRename, pl.dir.Name(), 0)
		back := unix.Renameat2(int(dir.Fd()), name, int(pl.parent.Fd()), pl.name, unix.RENAME_NOREPLACE)
		return errors.Join(err, back)
	}
	return errors.Join(x.fs.SyncDir(filepath.Dir(to)), x.fs.SyncDir(filepath.Dir(pl.dir.Name())))
}

// reprieve takes a condemnation back that could not be carried out. Where the
// directory did move, it stays condemned, and the next sweep records it.
func (x *executor) reprieve(was, g store.GenerationRow) error {
	path, err := x.site.path(g)
	if err != nil {
		return err
	}
	if inPlace, err := exists(path); err != nil || !inPlace {
		return err
	}
	was.ID, was.Changed = g.ID, x.o.now()
	if was.State == store.GenCondemned {
		return nil
	}
	return x.ws.Update(x.ctx, "reprieve", func(tx *store.Tx) error { return tx.PutGeneration(was) })
}

// trashed records that the directory lies in the trash.
func (x *executor) trashed(g store.GenerationRow, err error) (store.GenerationRow, error) {
	if err != nil {
		return g, err
	}
	g.State, g.Changed = store.GenTrashed, x.o.now()
	err = x.ws.Update(x.ctx, "trash", func(tx *store.Tx) error { return tx.PutGeneration(g) })
	if err == nil {
		x.rep.Note("generation %d (%s) moved to the trash", g.ID, g.Name)
	}
	return g, err
}

// watch remembers what was free on a filesystem before the first deletion. It
// is asked through the directory that holds the trash, which stays.
func (x *executor) watch(dir *os.File) error {
	dev, _, err := inode(dir)
	if err != nil {
		return err
	}
	if _, ok := x.spaces[dev]; ok {
		return nil
	}
	at := filepath.Dir(filepath.Dir(dir.Name()))
	sp, err := fsx.SpaceAt(at)
	if err == nil {
		x.spaces[dev] = space{path: at, before: sp.Free}
	}
	return err
}

// stale removes superseded plans and orders.
func (x *executor) stale(s *Sweep) error {
	dirs := map[string]bool{}
	for _, f := range s.Stale {
		path := filepath.Join(x.site.root, f.Path)
		if err := x.fs.Remove(path); err != nil {
			return err
		}
		dirs[filepath.Dir(path)] = true
	}
	for dir := range dirs {
		if err := x.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// freed asks the filesystems again. It is a report: where one does not answer,
// the deletion still happened.
func (x *executor) freed() int64 {
	var n int64
	for _, s := range x.spaces {
		d, err := os.Open(s.path)
		if err != nil {
			continue
		}
		err = unix.Syncfs(int(d.Fd())) // some filesystems free blocks late
		sp, serr := fsx.SpaceAt(s.path)
		if errors.Join(err, serr, d.Close()) == nil {
			n += sp.Free - s.before
		}
	}
	return n
}

// sweepTemp removes the files that crashes left under their temporary names:
// while run.lock is held, nobody writes them.
func (x *executor) sweepTemp() error {
	dirs := []string{filepath.Dir(x.ws.PlanPath(0)), filepath.Dir(x.ws.OrderPath(0))}
	err := x.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			if (g.State == store.GenBuilding || g.State == store.GenSealed) && g.Origin != retain.Adopted && g.Kind != retain.KindSamples {
				if path, perr := x.site.path(g); perr == nil {
					dirs = append(dirs, path)
				}
			}
		}
		return err
	})
	for _, dir := range dirs {
		if err == nil {
			_, err = x.fs.SweepTemp(dir)
		}
	}
	return err
}
