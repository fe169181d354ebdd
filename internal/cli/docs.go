package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// The JSON documents that others build on: fields are only ever added.

type statDoc struct {
	Schema      int             `json:"schema"`
	Workspace   string          `json:"workspace"`
	Live        bool            `json:"live"`
	AsOf        time.Time       `json:"as_of"`
	Holder      *holderDoc      `json:"holder,omitempty"`
	Phases      []phaseDoc      `json:"phases"`
	Datasets    []datasetDoc    `json:"datasets"`
	Shuffle     *shuffleDoc     `json:"shuffle"`
	Plan        *planDoc        `json:"plan"`
	Generations []generationRow `json:"generations"`
	Extract     *extractDoc     `json:"extract"`
	Outcomes    []plan.Outcome  `json:"outcomes"` // predicted against actual, of each sealed generation
	Waiting     string          `json:"waiting,omitempty"`
	LastRun     *lastRunDoc     `json:"last_run,omitempty"`
	Damage      string          `json:"damage,omitempty"`
	Notes       []string        `json:"notes,omitempty"`
	Next        string          `json:"next"`

	damage   error // what Damage says
	outdated bool  // samples were merged since the shuffle
}

type holderDoc struct {
	PID     int       `json:"pid"`
	Command string    `json:"command"`
	Started time.Time `json:"started"`
}

type lastRunDoc struct {
	Clean    bool      `json:"clean"`
	ExitCode int       `json:"exit_code"`
	At       time.Time `json:"at"`
}

type phaseDoc struct {
	Name     string     `json:"name"`
	State    string     `json:"state"`
	Done     int64      `json:"done"`
	Total    int64      `json:"total"`
	Unit     string     `json:"unit"`
	Started  *time.Time `json:"started"`
	Finished *time.Time `json:"finished"`
	Seconds  float64    `json:"seconds"`
	Error    string     `json:"error"`
}

type datasetDoc struct {
	Name       string           `json:"name"`
	Lines      int64            `json:"lines"`
	Accepted   int64            `json:"accepted"`
	Duplicates int64            `json:"duplicates"`
	Blank      int64            `json:"blank"`
	Rejected   int64            `json:"rejected"`
	Reasons    map[string]int64 `json:"rejected_by_reason,omitempty"`
	Samples    int64            `json:"samples"`
	Tokens     int64            `json:"tokens"`
	LossTokens int64            `json:"loss_tokens"`
	MaxTokens  int64            `json:"max_tokens"`
	Done       bool             `json:"done"`
}

type shuffleDoc struct {
	Algorithm  string `json:"algorithm"`
	Seed       uint64 `json:"seed"`
	N          int64  `json:"n"`
	Eval       int64  `json:"eval"`
	Subsampled int64  `json:"subsampled"`
	EvalTwins  int64  `json:"eval_twins"`
	Repeated   int64  `json:"repeated"`
	Hash       string `json:"hash"`
}

type planDoc struct {
	MaxTokens       int64    `json:"max_tokens"`
	Overlong        string   `json:"overlong"`
	Drop            []string `json:"drop"`
	Layers          []int    `json:"layers"`
	DType           string   `json:"dtype"`
	Rows            string   `json:"rows"`
	Samples         int64    `json:"samples"`
	Tokens          int64    `json:"tokens"`
	Dropped         int64    `json:"dropped"`
	OverLength      int64    `json:"over_length"`
	Emptied         int64    `json:"emptied"`
	Truncated       int64    `json:"truncated"`
	LostTokens      int64    `json:"lost_tokens"`
	Reused          int64    `json:"reused"`
	Repeated        int64    `json:"repeated"`
	NewSamples      int64    `json:"new_samples"`
	NewTokens       int64    `json:"new_tokens"`
	BytesPerToken   int64    `json:"bytes_per_token"`
	RawBytes        int64    `json:"raw_bytes"`
	ExpectedBytes   int64    `json:"expected_bytes"`
	ExpectedSeconds *float64 `json:"expected_seconds"`
	BlobBytes       int64    `json:"blob_bytes"`
	Blobs           int64    `json:"blobs"`
	DiskFree        int64    `json:"disk_free"`
	DiskFreeNow     int64    `json:"disk_free_now"`
	Reserve         int64    `json:"reserve"`
	Reclaimable     int64    `json:"reclaimable"`
	Decision        string   `json:"decision"`
	ShortBy         int64    `json:"short_by"`
}

type generationRow struct {
	ID          uint32   `json:"id"`
	Name        string   `json:"name"`
	Origin      string   `json:"origin"`
	Kind        string   `json:"kind"`
	State       string   `json:"state"`
	Samples     int64    `json:"samples"`
	Distinct    int64    `json:"distinct"`
	Tokens      int64    `json:"tokens"`
	Bytes       int64    `json:"bytes"`
	RawBytes    int64    `json:"raw_bytes"`
	Blobs       int64    `json:"blobs"`
	Quarantined int64    `json:"quarantined"`
	Pinned      bool     `json:"pinned"`
	PinReason   string   `json:"pin_reason,omitempty"`
	Needs       []uint32 `json:"needs"`
	Synthetic   bool     `json:"synthetic"`
	Path        string   `json:"path"`

	// Of what was adopted: the format that was recognised, how many files, and
	// when the newest was written.
	Format  string     `json:"format,omitempty"`
	Files   int64      `json:"files,omitempty"`
	Written *time.Time `json:"written,omitempty"`

	Created  *time.Time `json:"created"`
	Sealed   *time.Time `json:"sealed"`
	Changed  *time.Time `json:"changed"`   // last change of state
	NeededBy []uint32   `json:"needed_by"` // generations whose index points into it
	// What fp8 cost, by layer; absent where nothing was lost.
	Quantization []lossDoc `json:"quantization,omitempty"`
	// Of the generations command alone, which may take longer than stat.
	Class string `json:"class,omitempty"` // keep, free, decide, condemned, trashed, gone
	Why   string `json:"why,omitempty"`   // it is kept, or may go
}

type extractDoc struct {
	SamplesDone     int64              `json:"samples_done"`
	SamplesTotal    int64              `json:"samples_total"`
	TokensDone      int64              `json:"tokens_done"`
	Quarantined     int64              `json:"quarantined"`
	Left            int64              `json:"left"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	ETASeconds      float64            `json:"eta_seconds"`
	EngineBusy      float64            `json:"engine_busy"`
	Top1            float64            `json:"top1"`
	Gauges          map[string]float64 `json:"gauges,omitempty"`
	Slots           []slotDoc          `json:"slots,omitempty"` // of a live run: endpoints, workers
	ActualSeconds   float64            `json:"actual_seconds"`
	MissingBytes    int64              `json:"missing_bytes"` // room still lacking for what is left

	gone string // says so where the generation is not there for use any more
}

type slotDoc struct {
	Slot            int     `json:"slot"`
	Endpoint        string  `json:"endpoint,omitempty"` // as configured now
	TokensPerSecond float64 `json:"tokens_per_second"`
}

// slotDocs takes the slots' rates out of a run's gauges.
func slotDocs(gauges map[string]float64, endpoints []string) (out []slotDoc) {
	for i := 0; ; i++ {
		rate, ok := gauges[fmt.Sprintf("slot%d_tokens_per_second", i)]
		if !ok {
			return out
		}
		d := slotDoc{Slot: i, TokensPerSecond: rate}
		if i < len(endpoints) {
			d.Endpoint = endpoints[i]
			if u, err := url.Parse(endpoints[i]); err == nil {
				d.Endpoint = u.Redacted()
			}
		}
		out = append(out, d)
	}
}

func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func datasetDocs(rows []store.DatasetRow) []datasetDoc {
	out := []datasetDoc{}
	for _, d := range rows {
		out = append(out, datasetDoc{
			Name: d.Name, Lines: d.Lines, Accepted: d.Accepted, Duplicates: d.Duplicates, Blank: d.Blank,
			Rejected: d.Rejected, Reasons: d.Reasons, Samples: d.Accepted, Tokens: d.Tokens,
			LossTokens: d.LossTokens, MaxTokens: d.MaxTokens, Done: d.Done,
		})
	}
	return out
}

func shuffleDocOf(o store.OrderRow) *shuffleDoc {
	return &shuffleDoc{Algorithm: o.Algorithm, Seed: o.Seed, N: o.N, Eval: o.Eval, Subsampled: o.Subsampled, EvalTwins: o.EvalTwins, Repeated: o.Repeated, Hash: o.Hash}
}

func planDocOf(p store.PlanRow) *planDoc {
	d := &planDoc{
		MaxTokens: p.MaxTokens, Overlong: p.Overlong, Drop: p.Drop, Layers: p.Layers, DType: p.DType, Rows: p.Rows,
		Samples: p.Samples, Tokens: p.Tokens, Dropped: p.Dropped, OverLength: p.OverLength, Emptied: p.Emptied,
		Truncated: p.Truncated, LostTokens: p.LostTokens, Reused: p.Reused, Repeated: p.Repeated,
		NewSamples: p.NewSamples, NewTokens: p.NewTokens, BytesPerToken: p.BytesPerToken, RawBytes: p.RawBytes,
		ExpectedBytes: p.ExpectedBytes, BlobBytes: p.BlobBytes, Blobs: p.Blobs, DiskFree: p.DiskFree,
		Reserve: p.Reserve, Reclaimable: p.Reclaimable, Decision: string(p.Decision), ShortBy: p.ShortBy,
	}
	if d.Drop == nil {
		d.Drop = []string{}
	}
	if p.Seconds > 0 {
		d.ExpectedSeconds = &p.Seconds
	}
	return d
}

// generationDocs keeps the order of gens, and tells who points into whom.
func generationDocs(work string, gens []store.GenerationRow) []generationRow {
	out := make([]generationRow, len(gens))
	at := map[uint32]int{}
	for i, g := range gens {
		out[i], at[g.ID] = generationDoc(work, g), i
	}
	for _, g := range gens {
		if g.State == store.GenAbandoned || retain.IsGone(g) {
			continue // what it pointed to is not held by it any more
		}
		for _, id := range g.Needs {
			if i, ok := at[id]; ok {
				out[i].NeededBy = append(out[i].NeededBy, g.ID)
			}
		}
	}
	return out
}

func generationDoc(work string, g store.GenerationRow) generationRow {
	path := g.Path
	if g.State == store.GenTrashed && g.Trash != "" {
		path = g.Trash
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(work, path)
	}
	needs := g.Needs
	if needs == nil {
		needs = []uint32{}
	}
	row := generationRow{
		ID: g.ID, Name: g.Name, Origin: g.Origin, Kind: g.Kind, State: string(g.State), Samples: g.Samples,
		Distinct: g.Distinct, Tokens: g.Tokens, Bytes: g.Bytes, RawBytes: g.RawBytes, Blobs: g.Blobs,
		Quarantined: g.Quarantined, Pinned: g.Pinned != "", PinReason: g.Pinned, Needs: needs,
		Synthetic: g.Synthetic, Path: path, NeededBy: []uint32{}, Quantization: lossDocs(g.Losses),
		Created: timePtr(g.Created), Sealed: timePtr(g.Sealed), Changed: timePtr(g.Changed),
	}
	if g.Adopted != nil {
		row.Format, row.Files, row.Written = g.Adopted.Format, g.Adopted.Files, timePtr(g.Adopted.Written)
	}
	return row
}

type version struct {
	Version         string `json:"version"`
	Go              string `json:"go"`
	WorkspaceFormat int    `json:"workspace_format"`
}

func versionDoc() version {
	v := version{Version: "devel", Go: runtime.Version(), WorkspaceFormat: store.Format}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		v.Version = bi.Main.Version
	}
	return v
}

func hashText(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:16])
}
