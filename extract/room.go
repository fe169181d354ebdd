package extract

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"eaglebatch/internal/fsx"
	"eaglebatch/store"
)

// room keeps a generation's blobs from taking what stays free. Before a blob is
// begun it is asked whether those under way will fit, by what they are expected
// to take, so that an engine does not work for a blob that cannot be kept.
// Whatever was expected, writers ask it for each piece in its final form: states
// that turn out larger than foretold end the run and not the reserve.
type room struct {
	r *run

	mu    sync.Mutex
	cond  *sync.Cond
	taken int64 // bytes granted that may not be in what the filesystem says yet
}

func newRoom(r *run) *room {
	m := &room{r: r}
	m.cond = sync.NewCond(&m.mu)
	return m
}

// block is what a file's size on disk is rounded to, at least.
const block = 4 << 10

// Take grants n bytes to a writer. Where there is enough only without what
// others are just writing, it waits for these.
func (m *room) Take(n int64) error {
	n = blocks(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		err := store.CheckSpace(m.r.dir, m.taken+n, m.r.keep)
		if err == nil {
			m.taken += n
			return nil
		}
		if !errors.Is(err, store.ErrDiskFull) {
			return err
		}
		if m.taken == 0 {
			return m.short(n)
		}
		m.cond.Wait()
	}
}

// Wrote says that n bytes granted are in the file.
func (m *room) Wrote(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= blocks(n)
	m.cond.Broadcast()
}

func blocks(n int64) int64 { return (n + block - 1) / block * block }

// short says what is missing where n bytes are not free: all that is under way,
// since room for these alone would only end the run a little later.
func (m *room) short(n int64) error {
	sp, err := fsx.SpaceAt(m.r.dir)
	if err != nil {
		return err
	}
	return &store.SpaceError{Path: m.r.dir, Free: sp.Free, Need: n + m.wanted(), Keep: m.r.keep}
}

// forOpen fails unless all that open blobs are expected to write still fits.
func (m *room) forOpen() error { return store.CheckSpace(m.r.dir, m.wanted(), m.r.keep) }

// forTwin says whether there is room for a second copy of a blob, made beside
// the first until one of them is sealed. It only saves time, so nothing is
// trusted but raw bytes: it must not end a run that fits without it. Held:
// run.mu.
func (m *room) forTwin(no int) bool {
	r := m.r
	return store.CheckSpace(r.dir, r.blobTokens(no)*int64(r.cost.kept)+m.left(), r.keep) == nil
}

// wanted is what all open blobs are expected to write still.
func (m *room) wanted() int64 {
	m.r.mu.Lock()
	defer m.r.mu.Unlock()
	return m.r.cost.onDisk(m.left())
}

// left is what open blobs lack, in bytes of rows. Held: run.mu.
func (m *room) left() (n int64) {
	for _, js := range m.r.open {
		for _, j := range js {
			n += max(0, j.left)
		}
	}
	return n
}

// roomForSeal fails unless the index, which is no larger than the plan's, and the
// head fit.
func (r *run) roomForSeal() error {
	st, err := os.Stat(filepath.Join(r.dir, planName))
	if err != nil {
		return err
	}
	need := st.Size()
	if r.keepsHead() {
		need += r.o.Head.Size()
	}
	return store.CheckSpace(r.dir, need, r.keep)
}

// expect takes over what the plan foretells of rows, the tokens of all blobs. A
// plan that rests on no measurement foretells raw bytes.
func (c *costs) expect(p store.PlanRow, rows int64) {
	c.expected = 1
	if kept := rows * int64(c.kept); kept > 0 && p.ExpectedBytes > 0 {
		c.expected = float64(p.ExpectedBytes) / float64(kept)
	}
}

// measured counts a committed blob. Held: run.mu, once slots run.
func (c *costs) measured(b store.BlobRow) {
	if b.Tokens > 0 {
		c.encoded += b.Bytes
		c.rows += b.Tokens * int64(c.kept)
	}
}

// onDisk is what n bytes of rows are expected to take: as those committed did
// or, before there are any, as the plan foretells. Held: run.mu.
func (c *costs) onDisk(n int64) int64 {
	if c.rows > 0 {
		return int64(float64(n) * float64(c.encoded) / float64(c.rows))
	}
	return int64(float64(n) * c.expected)
}
