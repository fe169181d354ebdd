package gc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// change finds a generation by name or number, lets fn change its row and
// records it.
func change(ctx context.Context, ws *store.Workspace, name, label string, fn func(*store.GenerationRow) error) error {
	return ws.Update(ctx, label, func(tx *store.Tx) error {
		gens, err := tx.Generations()
		if err != nil {
			return err
		}
		g, err := retain.Find(gens, name)
		if err != nil {
			return err
		}
		if err := fn(&g); err != nil {
			return fmt.Errorf("%s generation %d (%s): %w", label, g.ID, g.Name, err)
		}
		return tx.PutGeneration(g)
	})
}

// Pin keeps a generation whatever gc's settings say, for a reason that is shown.
func Pin(ctx context.Context, ws *store.Workspace, name, reason string) error {
	return change(ctx, ws, name, "pin", func(g *store.GenerationRow) error {
		if g.State == store.GenCondemned || g.State == store.GenTrashed {
			return fmt.Errorf("it is %s: restore it first", g.State)
		}
		g.Pinned = cmp.Or(reason, "by hand")
		return nil
	})
}

// Unpin undoes Pin.
func Unpin(ctx context.Context, ws *store.Workspace, name string) error {
	return change(ctx, ws, name, "unpin", func(g *store.GenerationRow) error {
		g.Pinned = ""
		return nil
	})
}

// Retire lets gc reclaim a sealed generation although nothing newer is sealed.
// What points into it still keeps it.
func Retire(ctx context.Context, ws *store.Workspace, name string) error {
	return change(ctx, ws, name, "retire", func(g *store.GenerationRow) error {
		switch {
		case g.State == store.GenRetired:
			return nil
		case g.State != store.GenSealed && g.State != store.GenAbandoned:
			return fmt.Errorf("it is %s: only what is sealed or abandoned can be retired", g.State)
		case g.Pinned != "":
			return fmt.Errorf("it is pinned (%s): unpin it first", g.Pinned)
		}
		g.State, g.Changed = store.GenRetired, time.Now()
		return nil
	})
}

// Restore takes a generation back out of the trash, or its retirement back. It is pinned, so that the
// next sweep does not take it again.
func Restore(ctx context.Context, ws *store.Workspace, name string) error {
	var g store.GenerationRow
	err := ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		if err != nil {
			return err
		}
		g, err = retain.Find(gens, name)
		return err
	})
	if err != nil {
		return err
	}
	st, err := newSite(ws)
	if err != nil {
		return err
	}
	x := &executor{ctx: ctx, ws: ws, fs: ws.FS(), site: st, rep: progress.Nop{}}
	if err := x.restore(g); err != nil {
		return fmt.Errorf("restore generation %d (%s): %w", g.ID, g.Name, err)
	}
	return nil
}

func (x *executor) restore(g store.GenerationRow) (err error) {
	switch {
	case g.State == store.GenRetired && g.Path != "" && g.Kind != retain.KindSamples:
		return x.restored(g) // it lies in its place
	case g.State != store.GenTrashed && g.State != store.GenCondemned:
		return fmt.Errorf("it is %s, not in the trash", g.State)
	case g.Path == "":
		return errors.New("it is partly unlinked already: nothing sound is left to restore")
	}
	path, err := x.site.path(g)
	if err != nil {
		return err
	}
	if there, err := exists(path); err != nil {
		return err
	} else if there {
		if moved, err := exists(x.site.inTrash(g)); err != nil || moved {
			return errors.Join(err, fmt.Errorf("%s is taken", path))
		}
		if err := x.durable(g); err != nil {
			return err
		}
		return x.restored(g)
	}
	dir, name, err := x.site.trashDir(g)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := x.fs.MkdirAll(filepath.Dir(path)); err != nil {
		return err
	}
	parent, err := openReal(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	x.fs.Note(fsx.OpRename, path, 0)
	if err := unix.Renameat2(int(dir.Fd()), name, int(parent.Fd()), filepath.Base(path), unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: x.site.inTrash(g), New: path, Err: err}
	}
	if err := errors.Join(x.fs.SyncDir(parent.Name()), x.fs.SyncDir(dir.Name())); err != nil {
		return err
	}
	return x.restored(g)
}

// restored records that a generation is back. What was complete is sealed
// again, whether it had been retired or not; the pin says why it stays.
func (x *executor) restored(g store.GenerationRow) error {
	g.State = store.GenAbandoned
	if !g.Sealed.IsZero() || g.Origin == retain.Adopted {
		g.State = store.GenSealed
	}
	if g.Kind == retain.KindSamples {
		g.State = store.GenRetired
	}
	g.Trash, g.Changed = "", x.o.now()
	g.Pinned = cmp.Or(g.Pinned, "restored from the trash")
	return x.ws.Update(x.ctx, "restore", func(tx *store.Tx) error { return tx.PutGeneration(g) })
}
