// Package gc reclaims generations that nothing needs.
package gc

import (
	"context"
	"time"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// Options configures a collection.
type Options struct {
	Keep       int           // newest sealed generations kept
	MinAge     time.Duration // grace period in trash
	Names      []string      // generations a decision deletes (gc=NAME)
	Now        bool          // unlink at once
	NoFallback bool          // understood: nothing newer is sealed
}

// Item is one generation in a sweep.
type Item struct {
	Generation store.GenerationRow `json:"generation"`
	Action     string              `json:"action"` // keep, trash, unlink
	Reason     string              `json:"reason"`
	Bytes      int64               `json:"bytes"` // disk usage
	Files      int64               `json:"files"`
}

// Sweep is a planned collection.
type Sweep struct {
	Items []Item `json:"items"`
	Hash  string `json:"hash"`
	Trash int64  `json:"trash_bytes"` // will move to trash
	Free  int64  `json:"free_bytes"`  // will be freed now
}

// Plan says what Execute would do; it changes nothing.
func Plan(ctx context.Context, ws *store.Workspace, o Options) (*Sweep, error) { panic("wip") }

// Execute carries out a sweep whose hash still holds.
func Execute(ctx context.Context, ws *store.Workspace, s *Sweep, o Options, rep progress.Reporter) (freed int64, err error) {
	panic("wip")
}
