package gc

import (
	"errors"
	"time"

	"eaglebatch/store"
)

// Options configures a collection.
type Options struct {
	Keep   int           // newest sealed generations kept
	MinAge time.Duration // grace period in the trash
	// Names are the generations that a decision deletes. Where given, the sweep
	// touches no other generation.
	Names []string
	// ByHand says that Names are no recorded decision, so that it takes NoFallback
	// to delete what nothing newer replaces.
	ByHand     bool
	Now        bool             // unlink at once, without the grace period
	NoFallback bool             // understood: nothing newer is sealed
	Protected  []Protected      // what no directory that goes may hold
	Clock      func() time.Time // nil: time.Now
}

// Protected is a file or directory that something beside the generations needs,
// such as a dataset or the model.
type Protected struct{ What, Path string }

func (o Options) now() time.Time {
	if o.Clock != nil {
		return o.Clock()
	}
	return time.Now()
}

// The actions of a sweep.
const (
	ActionKeep   = "keep"
	ActionTrash  = "trash"  // condemn and rename into the trash
	ActionUnlink = "unlink" // delete what lies in the trash
	ActionFinish = "finish" // record what an interrupted restore or sweep did
	ActionForget = "forget" // record that the directory is gone
)

// Item is one generation in a sweep.
type Item struct {
	Generation store.GenerationRow `json:"generation"`
	Action     string              `json:"action"` // keep, trash, unlink, finish, forget
	Reason     string              `json:"reason"`
	Refused    bool                `json:"refused"` // nothing needs it, but it cannot be taken safely: see Reason
	Bytes      int64               `json:"bytes"`   // disk usage that deleting it frees
	Files      int64               `json:"files"`
	Now        bool                `json:"now"` // trashed and unlinked in one sweep

	id identity // what was looked at
}

// Sweep is a planned collection.
type Sweep struct {
	Items   []Item      `json:"items"`
	Hash    string      `json:"hash"`
	Trash   int64       `json:"trash_bytes"` // will move to the trash and stay there
	Free    int64       `json:"free_bytes"`  // will be freed now
	Stale   []StaleFile `json:"stale"`       // superseded plans and orders: removed
	Unknown []string    `json:"unknown"`     // directories among ours that the ledger does not know: never touched
}

// ErrChanged is returned by Execute where the sweep is no longer what Plan
// showed. Nothing was done.
var ErrChanged = errors.New("what gc would do is no longer what was shown: nothing was done, look again")

// ErrRefused is matched by the errors of what gc will not do.
var ErrRefused = errors.New("refused")
