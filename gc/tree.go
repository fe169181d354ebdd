package gc

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

const (
	readBatch = 1024 // directory entries read at once
	maxDepth  = 64
)

// identity proves that a directory is still the one that was looked at.
type identity struct {
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	List  string `json:"list"` // hash of the listing: path, type, size and mtime of every file
}

// usage is what a directory tree holds. It is read in one pass, a batch of
// names at a time: memory does not grow with the number of files, but for
// 32 bytes for each hard-linked file while some of its names are still unseen.
type usage struct {
	identity
	Files int64 // regular files and symbolic links
	Bytes int64 // disk usage, hard links once: sparse files count what they take
	Last  int64 // when the newest file was written, in nanoseconds since 1970
	Freed int64 // of it, what deleting the tree frees: files with a name elsewhere stay
}

// walker adds up a tree.
type walker struct {
	ctx   context.Context
	use   usage
	links map[uint64]link // by inode
	sum   [4]uint64       // the listing hash: a sum over the files, so that their order does not matter
	how   looking
}

// looking says what is looked at beside sizes.
type looking struct {
	each    func(rel string, st *unix.Stat_t) // sees every file; may be nil
	plain   bool                              // anything but regular files and directories is an error
	emptied bool                              // a directory that this process cannot empty is an error
}

type link struct {
	left  uint64 // names not seen yet
	bytes int64
}

// measure walks the tree under an open directory.
func measure(ctx context.Context, dir *os.File, how looking) (usage, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return usage{}, fmt.Errorf("stat %s: %w", dir.Name(), err)
	}
	w := &walker{ctx: ctx, links: map[uint64]link{}, how: how}
	w.use.Dev, w.use.Inode = uint64(st.Dev), st.Ino
	w.use.Bytes = st.Blocks * 512
	if err := w.dir(dir, "", 0); err != nil {
		return usage{}, err
	}
	w.use.Freed = w.use.Bytes
	for _, l := range w.links {
		w.use.Freed -= l.bytes
	}
	var sum [32]byte
	for i, v := range w.sum {
		binary.LittleEndian.PutUint64(sum[8*i:], v)
	}
	w.use.List = hex.EncodeToString(sum[:])
	return w.use, nil
}

func (w *walker) dir(d *os.File, rel string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: %s is nested more than %d deep", ErrRefused, d.Name(), maxDepth)
	}
	if w.how.emptied {
		if err := canEmpty(d); err != nil {
			return err
		}
	}
	for {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		ents, err := d.ReadDir(readBatch)
		for _, e := range ents {
			if err := w.entry(d, e.Name(), path.Join(rel, e.Name()), depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// canEmpty refuses a directory whose entries this process may not unlink, nor
// make so: it would be left half deleted.
func canEmpty(d *os.File) error {
	err := unix.Faccessat(int(d.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err == nil {
		return nil
	}
	var st unix.Stat_t
	if serr := unix.Fstat(int(d.Fd()), &st); serr != nil {
		return fmt.Errorf("stat %s: %w", d.Name(), serr)
	}
	if errors.Is(err, unix.EACCES) && int(st.Uid) == os.Geteuid() {
		return nil // its owner may change its mode, and does
	}
	return fmt.Errorf("%w: what is in %s cannot be deleted (%w; it belongs to user %d)", ErrRefused, d.Name(), err, st.Uid)
}

func (w *walker) entry(d *os.File, name, rel string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("stat %s: %w", path.Join(d.Name(), name), err)
	}
	kind := st.Mode & unix.S_IFMT
	if w.how.plain && kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return fmt.Errorf("%w: %s is neither a file nor a directory: eaglebatch did not make it", ErrRefused, path.Join(d.Name(), name))
	}
	if kind == unix.S_IFDIR {
		w.use.Bytes += st.Blocks * 512
		sub, err := openBelow(d, name)
		if err != nil {
			return err
		}
		return errors.Join(w.dir(sub, rel, depth+1), sub.Close())
	}
	if w.how.each != nil {
		w.how.each(rel, &st)
	}
	w.use.Files++
	w.use.Last = max(w.use.Last, st.Mtim.Nano())
	w.add(rel, &st)
	return nil
}

// add counts a file once, however many names it has in the tree.
func (w *walker) add(rel string, st *unix.Stat_t) {
	h := sha256.New()
	var fixed [24]byte
	binary.LittleEndian.PutUint64(fixed[0:], uint64(st.Mode&unix.S_IFMT))
	binary.LittleEndian.PutUint64(fixed[8:], uint64(st.Size))
	binary.LittleEndian.PutUint64(fixed[16:], uint64(st.Mtim.Nano()))
	h.Write(fixed[:])
	io.WriteString(h, rel)
	sum := h.Sum(nil)
	var carry uint64
	for i := range w.sum {
		w.sum[i], carry = bits.Add64(w.sum[i], binary.LittleEndian.Uint64(sum[8*i:]), carry)
	}
	bytes := st.Blocks * 512
	if st.Nlink <= 1 {
		w.use.Bytes += bytes
		return
	}
	l, seen := w.links[st.Ino]
	if !seen {
		w.use.Bytes += bytes
		l = link{left: uint64(st.Nlink), bytes: bytes}
	}
	if l.left--; l.left == 0 {
		delete(w.links, st.Ino) // all its names lie in the tree: deleting it frees it
		return
	}
	w.links[st.Ino] = l
}
