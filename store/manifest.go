package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"eaglebatch/internal/fsx"
)

const (
	manifestName = "manifest.db"
	ledgerBucket = "ledger" // not part of the table: holds the seq
	seqKey       = "seq"
	commitRoom   = 64 << 10 // bytes: what a commit takes with room to spare
)

// Where more can be said than that something is damaged.
const (
	hintRebuildManifest = "checkpoints.jsonl is sound: 'eaglebatch check --rebuild-manifest' makes manifest.db anew from it"
	hintRebuildLog      = "checkpoints.jsonl is what is damaged, so 'eaglebatch check --rebuild-manifest' cannot help; restore it from a copy, or make it anew from manifest.db with 'eaglebatch check --rebuild-log'"
)

// errUnreadable marks what bbolt panics or faults on.
var errUnreadable = errors.New("damaged page")

// guard turns a panic of bbolt, which trusts its pages, into an error. It
// goes around bbolt calls only.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errUnreadable, r)
		}
	}()
	return fn()
}

func manifestDamage(path, key string, err error) error {
	return &CorruptError{Path: path, Key: key, Offset: -1, Err: err, Hint: hintRebuildManifest}
}

// closeBoltGrace is how long a manifest may take to close, which takes no time
// unless it waits for a lock.
const closeBoltGrace = 10 * time.Second

// closeBolt closes db. A panic that guard turned into an error may have left
// bbolt's locks held: then nobody can close it, and it stays until the process
// ends.
func closeBolt(db *bolt.DB, grace time.Duration) error {
	path, done := db.Path(), make(chan error, 1)
	go func() { done <- guard(db.Close) }()
	select {
	case err := <-done:
		return err
	case <-time.After(grace):
		return manifestDamage(path, "", fmt.Errorf("%w: it does not close after what was met in it", errUnreadable))
	}
}

func openBolt(path string) (db *bolt.DB, err error) {
	err = guard(func() error {
		// The timeout is for foreign programs that read the file: other runs
		// are kept away by run.lock.
		db, err = bolt.Open(path, 0o666, &bolt.Options{
			Timeout:      time.Second,
			FreelistType: bolt.FreelistMapType,
		})
		return err
	})
	err = named("open", path, err)
	var sys syscall.Errno
	var failed *fs.PathError
	switch {
	case err == nil:
		return db, nil
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("%s: another program has it open: %w", path, err)
	case errors.As(err, &sys), errors.As(err, &failed):
		return nil, err
	}
	return nil, manifestDamage(path, "", err) // bbolt names only some of its reasons
}

// boltSeq returns the step at which db stands, 0 where it has none yet.
func boltSeq(db *bolt.DB) (seq uint64, err error) {
	err = guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(ledgerBucket))
			if b == nil {
				return nil
			}
			v := b.Get([]byte(seqKey))
			if len(v) != 8 {
				return fmt.Errorf("%w: seq of %d bytes", errUnreadable, len(v))
			}
			seq = binary.BigEndian.Uint64(v)
			return nil
		})
	})
	if errors.Is(err, errUnreadable) {
		err = manifestDamage(db.Path(), ledgerBucket, err)
	}
	return seq, err
}

// boltUsed returns how many bytes from its beginning db has ever written to. The
// file may be longer, and have holes there.
func boltUsed(db *bolt.DB) (n int64, err error) {
	err = guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			n = tx.Size()
			return nil
		})
	})
	if errors.Is(err, errUnreadable) {
		err = manifestDamage(db.Path(), "", err)
	}
	return n, err
}

// applyBolt carries ops into db and sets its seq, in one transaction.
func applyBolt(fsys *fsx.FS, db *bolt.DB, seq uint64, ops []op) error {
	err := guard(func() error {
		return db.Update(func(tx *bolt.Tx) error {
			for _, o := range ops {
				b, err := tx.CreateBucketIfNotExists([]byte(o.bucket))
				if err != nil {
					return err
				}
				if o.del {
					err = b.Delete([]byte(o.key))
				} else {
					err = b.Put([]byte(o.key), o.value)
				}
				if err != nil {
					return fmt.Errorf("%s/%s: %w", o.bucket, o.key, err)
				}
			}
			b, err := tx.CreateBucketIfNotExists([]byte(ledgerBucket))
			if err != nil {
				return err
			}
			if err := b.Put([]byte(seqKey), binary.BigEndian.AppendUint64(nil, seq)); err != nil {
				return err
			}
			fsys.Note(fsx.OpCommit, db.Path(), int64(seq))
			return nil
		})
	})
	if errors.Is(err, errUnreadable) {
		return manifestDamage(db.Path(), "", err)
	}
	return asSpace(db.Path(), commitRoom, named("sync", db.Path(), err))
}

// named adds operation and file to an error of bbolt's that has neither, which
// is how a failed fdatasync comes back, and the cause to one that lost it.
func named(op, path string, err error) error {
	if sys, bare := err.(syscall.Errno); bare {
		return &fsx.PathError{Op: op, Path: path, Err: sys}
	}
	return fsx.Unflatten(err)
}

// boltTable reads the table in a bbolt transaction.
type boltTable struct {
	tx   *bolt.Tx
	path string
}

func (t boltTable) get(bucket, key string) (v []byte, ok bool, err error) {
	err = guard(func() error {
		if b := t.tx.Bucket([]byte(bucket)); b != nil {
			v = bytes.Clone(b.Get([]byte(key)))
			ok = v != nil
		}
		return nil
	})
	return v, ok, t.damage(bucket, err)
}

func (t boltTable) scan(bucket, prefix string, fn func(string, []byte) error) error {
	err := guard(func() error {
		b := t.tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		c := b.Cursor()
		p := []byte(prefix)
		for k, v := c.Seek(p); k != nil && bytes.HasPrefix(k, p); k, v = c.Next() {
			if err := fn(string(k), bytes.Clone(v)); err != nil {
				return err
			}
		}
		return nil
	})
	return t.damage(bucket, err)
}

func (t boltTable) damage(bucket string, err error) error {
	if errors.Is(err, errUnreadable) {
		return manifestDamage(t.path, bucket, err)
	}
	return err
}

func (t boltTable) place() string { return t.path }

// readBolt reads the whole table of db.
func readBolt(db *bolt.DB) (state, error) {
	s := state{}
	err := guard(func() error {
		return db.View(func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
				if string(name) == ledgerBucket {
					return nil
				}
				return b.ForEach(func(k, v []byte) error {
					s.apply([]op{{bucket: string(name), key: string(k), value: append([]byte{}, v...)}})
					return nil
				})
			})
		})
	})
	if errors.Is(err, errUnreadable) {
		err = manifestDamage(db.Path(), "", err)
	}
	return s, err
}

// compare fails at the first key in which db differs from want.
func compare(db *bolt.DB, want state) error {
	have, err := readBolt(db)
	if err != nil {
		return err
	}
	for _, o := range want.ops() {
		v, ok := have[o.bucket][o.key]
		if !ok || !bytes.Equal(v, o.value) {
			return manifestDamage(db.Path(), o.bucket+"/"+o.key, errors.New("differs from checkpoints.jsonl"))
		}
		delete(have[o.bucket], o.key)
	}
	for _, o := range have.ops() {
		return manifestDamage(db.Path(), o.bucket+"/"+o.key, errors.New("is not in checkpoints.jsonl"))
	}
	return nil
}

func manifestPath(dir string) string { return filepath.Join(dir, manifestName) }
