// Package permute shuffles the merged index.
package permute

import (
	"context"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// Options configures the shuffle.
type Options struct {
	Seed      uint64
	Algorithm string             // numpy or feistel
	Weights   map[string]float64 // by dataset; 1 where missing. 2.5: twice, and half of it a third time; 0.3: a seeded 30%
	Eval      map[string]int64   // samples set aside, by dataset
}

// Fingerprint returns the parts the order depends on: seed, algorithm, weights,
// eval, and the merged rows (per dataset: count and content hash of its rows).
func Fingerprint(ctx context.Context, ws *store.Workspace, o Options) ([]store.Part, error) {
	panic("wip")
}

// Run makes the order and records it.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (store.OrderRow, error) {
	panic("wip")
}
