package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// Reclaim is a generation whose room a plan may count on.
type Reclaim struct {
	ID     uint32 `json:"id"`
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
	// Decision says that only a recorded decision that names it deletes it.
	Decision bool `json:"decision"`
	// Named says that the decision in force names it.
	Named bool   `json:"named"`
	Path  string `json:"path"`
	Error string `json:"error"` // why it could not be looked at; it counts as elsewhere then
}

// Room is what the filesystem of the generations has to give.
type Room struct {
	Total       int64     `json:"total"`
	Free        int64     `json:"free"`
	Reserve     int64     `json:"reserve"`
	Reclaimable int64     `json:"reclaimable"`
	Named       int64     `json:"named"`  // of it, what the decision in force deletes
	Need        int64     `json:"need"`   // what the blobs that the plan still writes take
	Beside      int64     `json:"beside"` // what is written beside them: indexes and the model's head
	From        []Reclaim `json:"from"`
	Elsewhere   []Reclaim `json:"elsewhere"` // on other filesystems, or out of reach: they make no room here
}

// generationsRoot is the directory whose filesystem counts: a generations
// directory that is a mount of its own is what is filled.
func generationsRoot(ws *store.Workspace) string {
	dir := filepath.Join(ws.Dir(), "generations")
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	return ws.Dir()
}

// MeasureRoom asks the filesystem of the generations what is free, and adds up
// what generations there could be deleted: those that nothing needs, and those
// that a decision may name. What lies in the trash does not count, unless a
// decision in force names it, nor what lies on another filesystem. planNeeds are the generations that the plan
// points into.
func MeasureRoom(ws *store.Workspace, r store.Reader, reserve human.Share, names []string, planNeeds []uint32) (Room, error) {
	root := generationsRoot(ws)
	sp, err := fsx.SpaceAt(root)
	if err != nil {
		return Room{}, err
	}
	room := Room{Total: sp.Total, Free: sp.Free, Reserve: reserve.Of(sp.Total), From: []Reclaim{}, Elsewhere: []Reclaim{}}
	verdicts, err := retain.Judge(r, retain.Options{Keep: 1, Names: names, PlanNeeds: planNeeds})
	if err != nil {
		return Room{}, err
	}
	dev, err := device(root)
	if err != nil {
		return Room{}, err
	}
	for _, v := range verdicts {
		if err := room.count(ws, r, v, dev); err != nil {
			return Room{}, err
		}
	}
	return room, nil
}

// count adds what deleting one generation frees.
func (m *Room) count(ws *store.Workspace, r store.Reader, v retain.Verdict, dev uint64) error {
	g := v.Generation
	// What a decision names and an interrupted deletion left in the trash goes
	// as soon as it is resumed.
	resumed := v.Named && (v.Class == retain.Trashed || v.Class == retain.Condemned)
	if v.Class != retain.Free && v.Class != retain.Decide && v.Class != retain.Condemned && !resumed {
		return nil
	}
	path := g.Path
	if path != "" {
		path = ws.GenerationDir(g)
	}
	d, err := device(path)
	if errors.Is(err, os.ErrNotExist) && resumed {
		if path = g.Trash; !filepath.IsAbs(path) {
			path = filepath.Join(ws.Dir(), path)
		}
		d, err = device(path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	c := Reclaim{ID: g.ID, Name: g.Name, Path: path, Reason: v.Reason, Decision: v.Class == retain.Decide, Named: v.Named}
	if err != nil { // a disk that does not answer is no reason to foretell nothing
		c.Error = err.Error()
	}
	var n int64
	if v.Class == retain.Trashed && c.Error == "" {
		n, err = diskUsage(path) // part of it may be gone
	} else {
		n, err = generationBytes(r, g)
	}
	if err != nil || n == 0 {
		return err
	}
	c.Bytes = n
	if c.Error != "" || d != dev {
		m.Elsewhere = append(m.Elsewhere, c)
		return nil
	}
	m.From = append(m.From, c)
	m.Reclaimable += n
	if v.Named {
		m.Named += n
	}
	return nil
}

// diskUsage adds up the files below dir that have no name elsewhere.
func diskUsage(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && (e.IsDir() || sys.Nlink == 1) {
			n += sys.Blocks * 512
		}
		return nil
	})
	return n, err
}

// Enough says whether the generations that a decision names make the room that
// the plan still needs. It is not enough that others could be deleted too.
func (m Room) Enough() bool { return m.Need <= m.spare()+m.Named }

// spare is what blobs may take without anything being deleted.
func (m Room) spare() int64 { return m.Free - m.Reserve - m.Beside }

// beside is what a generation takes beside its blobs: the plan's index, its own,
// and the head.
func beside(o Options, positions int64) int64 { return o.Beside + indexBytes*positions }

// indexBytes is what a position and an entry of its own take in both indexes.
const indexBytes = 2 * (40 + 48)

// generationBytes is what the ledger knows a generation to take on disk. A
// generation that was given up has no total: its blobs do.
func generationBytes(r store.Reader, g store.GenerationRow) (int64, error) {
	if g.Bytes > 0 {
		return g.Bytes, nil
	}
	return blobBytes(r, g)
}

func device(path string) (uint64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: no device number", path)
	}
	return uint64(sys.Dev), nil
}

// apply decides: what the plan still writes against what is free beyond the
// reserve, and what could be freed. The row's expected bytes are those left.
func (m Room) apply(row *store.PlanRow) {
	row.DiskFree, row.Reserve, row.Reclaimable = m.Free, m.Reserve, m.Reclaimable
	row.Decision, row.ShortBy = decide(row.ExpectedBytes, m.spare(), m.Reclaimable)
}

// decide compares need with room. shortBy is what is missing even after
// everything reclaimable is freed.
func decide(need, room, reclaimable int64) (d store.Decision, shortBy int64) {
	switch {
	case need <= room:
		return store.Fits, 0
	case need <= room+reclaimable:
		return store.FitsAfterGC, 0
	}
	return store.Short, need - room - reclaimable
}

// Reassess decides anew with the room there is now, for a plan whose
// generation may be partly extracted: only what is left to write counts.
func Reassess(ws *store.Workspace, r store.Reader, row store.PlanRow, reserve human.Share) (store.PlanRow, Room, error) {
	d, err := getDetail(r, row.ID)
	if err != nil {
		return row, Room{}, err
	}
	needs := d.Needs
	if row.Generation != 0 {
		needs = append(slices.Clone(needs), row.Generation) // its own states make no room for it
	}
	room, err := MeasureRoom(ws, r, reserve, d.Options.GCNames, needs)
	if err != nil {
		return row, Room{}, err
	}
	left, sealed, err := leftToWrite(r, row)
	if err != nil {
		return row, room, err
	}
	if !sealed {
		room.Beside = beside(d.Options, row.Samples)
	}
	expected := row.ExpectedBytes
	row.ExpectedBytes, room.Need = left, left
	room.apply(&row)
	row.ExpectedBytes = expected
	return row, room, nil
}

// leftToWrite is what remains of the expected bytes, and whether nothing does
// since the generation is sealed.
func leftToWrite(r store.Reader, row store.PlanRow) (left int64, sealed bool, err error) {
	if row.Generation == 0 {
		return row.ExpectedBytes, false, nil
	}
	g, ok, err := r.Generation(row.Generation)
	if err != nil {
		return 0, false, err
	}
	if ok && !g.Sealed.IsZero() {
		return 0, true, nil
	}
	if row.RawBytes == 0 {
		return row.ExpectedBytes, false, nil
	}
	blobs, err := r.Blobs(row.Generation)
	if err != nil {
		return 0, false, err
	}
	var raw int64
	for _, b := range blobs {
		raw += b.RawBytes
	}
	share := float64(max(0, row.RawBytes-raw)) / float64(row.RawBytes)
	return int64(float64(row.ExpectedBytes) * share), false, nil
}
