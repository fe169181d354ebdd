package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"eaglebatch/internal/fsx"
)

// RebuildManifest makes manifest.db anew from checkpoints.jsonl. It refuses
// where that would lose a step that manifest.db still has.
func RebuildManifest(ctx context.Context, dir string, o Options) error {
	return repair(ctx, dir, o, func(m marker) error {
		h, err := readLog(dir)
		if err != nil {
			return err
		}
		if err := checkRoot(filepath.Join(dir, logName), h.state, m); err != nil {
			return err
		}
		// An unreadable manifest.db has no say: it is why we are here.
		if at, err := readSeq(dir); err == nil && at > h.seq {
			return &CorruptError{Path: filepath.Join(dir, logName), Offset: h.end, Hint: hintRebuildLog,
				Err: fmt.Errorf("whole lines end at step %d, but manifest.db is at step %d: nothing changed", h.seq, at)}
		}
		return rebuildManifest(o.FS, dir)
	})
}

// RebuildLog makes checkpoints.jsonl anew from manifest.db, as one line. It
// refuses where that would lose a step that checkpoints.jsonl still has, or
// where manifest.db is not sound.
func RebuildLog(ctx context.Context, dir string, o Options) error {
	return repair(ctx, dir, o, func(m marker) (err error) {
		h, err := readLog(dir)
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return err
		}
		path := manifestPath(dir)
		if _, err := os.Stat(path); err != nil {
			return err
		}
		db, err := openBolt(path)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeBolt(db, closeBoltGrace)) }()
		if err := checkBolt(ctx, db); err != nil {
			return err
		}
		at, err := boltSeq(db)
		if err != nil {
			return err
		}
		if at < h.seq {
			return manifestDamage(path, "", fmt.Errorf("at step %d, checkpoints.jsonl is at step %d: nothing changed", at, h.seq))
		}
		s, err := readBolt(db)
		if err != nil {
			return err
		}
		if err := checkRoot(path, s, m); err != nil {
			return err
		}
		return writeLog(o.FS, dir, step{seq: at, at: time.Now(), label: "rebuilt from manifest.db", base: true, ops: s.ops()})
	})
}

// RebuildMarker writes the marker anew, which checkpoints.jsonl and manifest.db
// name in agreement. Workspaces of older formats have their own number there; a
// marker that can be read keeps it.
func RebuildMarker(ctx context.Context, dir string, o Options) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m, err := readMarker(dir)
	if errors.Is(err, ErrNewer) {
		return err
	}
	if err != nil {
		m.Format = Format
	}
	if _, err := os.Stat(manifestPath(dir)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", manifestPath(dir), err)
	}
	lock, err := acquire(o.FS, dir, o.Command)
	if err != nil {
		return err
	}
	return errors.Join(rebuildMarker(o.FS, dir, m), lock.release())
}

func rebuildMarker(fsys *fsx.FS, dir string, m marker) (err error) {
	h, err := readLog(dir)
	if err != nil {
		return err
	}
	db, err := openBolt(manifestPath(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBolt(db, closeBoltGrace)) }()
	s, err := readBolt(db)
	if err != nil {
		return err
	}
	m.RootID = string(h.state[bucketMeta][keyRoot])
	if m.RootID == "" {
		return &CorruptError{Path: filepath.Join(dir, logName), Offset: -1, Key: bucketMeta + "/" + keyRoot, Err: errors.New("names no workspace")}
	}
	if err := checkRoot(manifestPath(dir), s, m); err != nil {
		return err
	}
	return writeMarker(fsys, dir, m)
}

// repair runs fn on a workspace that may be too damaged to be opened.
func repair(ctx context.Context, dir string, o Options, fn func(marker) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m, err := readMarker(dir)
	if err != nil {
		return err
	}
	lock, err := acquire(o.FS, dir, o.Command)
	if err != nil {
		return err
	}
	return errors.Join(fn(m), lock.release())
}

// rebuildManifest replays the log into a new file and puts it in the place of
// manifest.db.
func rebuildManifest(fsys *fsx.FS, dir string) error {
	h, err := readLog(dir)
	if err != nil {
		return err
	}
	tmp := manifestPath(dir) + fsx.TempSuffix
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := openBolt(tmp)
	if err != nil {
		return err
	}
	// The commit fsyncs.
	if err := errors.Join(applyBolt(fsys, db, h.seq, h.state.ops()), closeBolt(db, closeBoltGrace)); err != nil {
		return err
	}
	return fsys.Rename(tmp, manifestPath(dir))
}

func readSeq(dir string) (seq uint64, err error) {
	if _, err := os.Stat(manifestPath(dir)); err != nil {
		return 0, err
	}
	db, err := openBolt(manifestPath(dir))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closeBolt(db, closeBoltGrace)) }()
	return boltSeq(db)
}
