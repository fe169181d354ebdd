// Package plan decides what is extracted, into which blobs, and whether it fits.
package plan

import (
	"context"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// Options configures a plan.
type Options struct {
	Model     string       // fingerprint
	Meta      blob.Meta    // layers, hidden, dtype, codec, last_prenorm, engine …: Generation, Blob and Datasets are filled in here
	Identity  []store.Part // what an older generation must agree on to be reused
	MaxTokens int64        // 0: no cap
	Overlong  string       // truncate, skip or split
	Drop      []string
	Rows      string // all …
	Reserve   human.Share
	BlobSize  int64    // 0: chosen
	Rate      float64  // tokens a second, 0: unknown
	Ratio     float64  // encoded/raw, 0: unknown
	GCNames   []string // generations a recorded decision deletes first
}

// Fingerprint returns the parts a plan depends on.
func Fingerprint(ctx context.Context, ws *store.Workspace, o Options) ([]store.Part, error) {
	panic("wip")
}

// Run makes the plan: writes its index, records it.
func Run(ctx context.Context, ws *store.Workspace, o Options, rep progress.Reporter) (store.PlanRow, error) {
	panic("wip")
}

// Report is what `plan` shows: per dataset lengths and shares, the decision, choices.
type Report struct {
	Plan     store.PlanRow   `json:"plan"`
	Datasets []DatasetReport `json:"datasets"`
}

// DatasetReport is one dataset's part.
type DatasetReport struct {
	Name       string  `json:"name"`
	Samples    int64   `json:"samples"`
	Tokens     int64   `json:"tokens"`
	LossTokens int64   `json:"loss_tokens"`
	P50        int64   `json:"p50"`
	P90        int64   `json:"p90"`
	P99        int64   `json:"p99"`
	Max        int64   `json:"max"`
	Share      float64 `json:"share"` // of all tokens, before the cap
	CapTokens  int64   `json:"cap_tokens"`
	CapShare   float64 `json:"cap_share"` // after the cap
}

// Build makes the report of the plan in force without changing anything.
func BuildReport(ctx context.Context, r store.Reader, ws *store.Workspace) (Report, error) {
	panic("wip")
}
