// Package extract runs the planned samples through a backend into blobs.
package extract

import (
	"context"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// Options configures an extraction.
type Options struct {
	Backend        backend.Backend
	Head           *model.Head // for the sense check; nil: not checked
	MinTop1        float64     // below it the run stops (20); 0: default
	Memory         int64
	Threads        int // encoders
	MaxQuarantined human.Share
	Reserve        human.Share
	Limit          int64     // stop once so many positions are done; 0: none
	Until          time.Time // stop then; zero: never
	Patience       time.Duration
	Grace          time.Duration   // for open blobs after an interrupt
	Interrupt      <-chan struct{} // closed at the first SIGINT/SIGTERM: finish the open blobs
	Name           string          // of the generation; "" : gen-NNNNNN
}

// Result is the outcome.
type Result struct {
	Generation store.GenerationRow
	Sealed     bool
	Stopped    bool // by Limit, Until or Interrupt: run again to go on
}

// Run extracts what the plan in force still lacks and seals the generation.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (Result, error) {
	panic("wip")
}
