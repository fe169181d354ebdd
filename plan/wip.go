package plan

import (
	"context"

	"eaglebatch/store"
)

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
