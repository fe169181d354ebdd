package plan

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
}

// Room is what the filesystem of the generations has to give.
type Room struct {
	Total       int64     `json:"total"`
	Free        int64     `json:"free"`
	Reserve     int64     `json:"reserve"`
	Reclaimable int64     `json:"reclaimable"`
	From        []Reclaim `json:"from"`
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
// that a decision may name. What lies in the trash does not count, nor what
// lies on another filesystem. planNeeds are the generations that the plan
// points into.
func MeasureRoom(ws *store.Workspace, r store.Reader, reserve human.Share, names []string, planNeeds []uint32) (Room, error) {
	root := generationsRoot(ws)
	sp, err := fsx.SpaceAt(root)
	if err != nil {
		return Room{}, err
	}
	room := Room{Total: sp.Total, Free: sp.Free, Reserve: reserve.Of(sp.Total), From: []Reclaim{}}
	verdicts, err := retain.Judge(r, retain.Options{Keep: 1, Names: names, PlanNeeds: planNeeds})
	if err != nil {
		return Room{}, err
	}
	dev, err := device(root)
	if err != nil {
		return Room{}, err
	}
	for _, v := range verdicts {
		if v.Class != retain.Free && v.Class != retain.Decide && v.Class != retain.Condemned {
			continue
		}
		g := v.Generation
		d, err := device(ws.GenerationDir(g))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return Room{}, err
		}
		n, err := generationBytes(r, g)
		if err != nil {
			return Room{}, err
		}
		if d != dev || n == 0 {
			continue
		}
		room.From = append(room.From, Reclaim{ID: g.ID, Name: g.Name, Bytes: n, Reason: v.Reason, Decision: v.Class == retain.Decide})
		room.Reclaimable += n
	}
	return room, nil
}

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
// reserve, and what could be freed.
func (m Room) apply(row *store.PlanRow) {
	row.DiskFree, row.Reserve, row.Reclaimable = m.Free, m.Reserve, m.Reclaimable
	row.Decision, row.ShortBy = decide(row.ExpectedBytes, m.Free-m.Reserve, m.Reclaimable)
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
	room, err := MeasureRoom(ws, r, reserve, d.Options.GCNames, d.Needs)
	if err != nil {
		return row, Room{}, err
	}
	left, err := leftToWrite(r, row)
	if err != nil {
		return row, room, err
	}
	expected := row.ExpectedBytes
	row.ExpectedBytes = left
	room.apply(&row)
	row.ExpectedBytes = expected
	return row, room, nil
}

// leftToWrite is what remains of the expected bytes.
func leftToWrite(r store.Reader, row store.PlanRow) (int64, error) {
	if row.Generation == 0 || row.RawBytes == 0 {
		return row.ExpectedBytes, nil
	}
	blobs, err := r.Blobs(row.Generation)
	if err != nil {
		return 0, err
	}
	var raw int64
	for _, b := range blobs {
		raw += b.RawBytes
	}
	left := max(0, row.RawBytes-raw)
	return int64(float64(row.ExpectedBytes) * float64(left) / float64(row.RawBytes)), nil
}
