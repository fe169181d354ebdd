// Package ingest merges tokenized datasets into the workspace.
package ingest

import (
	"context"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// Dataset is one dataset of the configuration.
type Dataset struct {
	Name  string
	Paths []string // files, directories or globs, absolute; expanded in sorted order
}

// Options configures a merge.
type Options struct {
	Datasets      []Dataset
	VocabSize     int    // ids at or above it are rejected
	Dedup         string // content or none
	MaxRejects    human.Share
	MinLossTokens int
	Threads       int   // parsers; 0: all cores. Never changes the result
	Memory        int64 // 0: 512 MiB
}

// Stats is the outcome.
type Stats struct {
	Datasets []store.DatasetRow
}

// Fingerprint returns the parts that a finished merge depends on: options, and
// one "dataset NAME" part a dataset, in order, from its sources as they are now
// (hashed again only where size or mtime differ from what is recorded; recorded
// values where a merged source is gone). Appending datasets only appends parts.
func Fingerprint(ctx context.Context, r store.Reader, o Options) ([]store.Part, error) { panic("wip") }

// Run merges what is not merged yet, from the ledger's cursor.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (Stats, error) {
	panic("wip")
}

// Reset forgets the merge (run --redo merge): samples generations become
// reclaimable, numbers are not reused.
func Reset(ctx context.Context, ws *store.Workspace) error { panic("wip") }

// RejectsCommand records that the rejects of a dataset are accepted
// (merge --accept-rejects NAME), so that Run goes on past max_rejects.
func AcceptRejects(ctx context.Context, ws *store.Workspace, dataset string) error { panic("wip") }
