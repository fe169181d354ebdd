package store

import (
	"slices"
	"time"
)

// Part is one named component of a phase's fingerprint. Two fingerprints are
// equal when their parts are, in order; what differs is named by Key.
type Part struct {
	Key   string `msgpack:"k" json:"key"`
	Value string `msgpack:"v" json:"value"`
}

// State is where a phase stands.
type State string

// The states of a phase.
const (
	Pending State = "pending"
	Running State = "running"
	Done    State = "done"
	Stale   State = "stale"   // an earlier phase was done anew
	Blocked State = "blocked" // waits for a decision
	Failed  State = "failed"
)

// The names of the phases, in order.
const (
	PhaseMerge   = "merge"
	PhaseShuffle = "shuffle"
	PhasePlan    = "plan"
	PhaseGC      = "gc"
	PhaseExtract = "extract"
)

// Phases returns the names of the phases in the order in which they run.
func Phases() []string {
	return []string{PhaseMerge, PhaseShuffle, PhasePlan, PhaseGC, PhaseExtract}
}

// PhaseRow is what the ledger knows of a phase.
type PhaseRow struct {
	Name        string    `msgpack:"n"`
	State       State     `msgpack:"s"`
	Fingerprint []Part    `msgpack:"f"`
	Cursor      []byte    `msgpack:"c,omitempty"` // private to the phase
	Done        int64     `msgpack:"d"`
	Total       int64     `msgpack:"t"`
	Unit        string    `msgpack:"u"` // samples or bytes
	Started     time.Time `msgpack:"b"`
	Finished    time.Time `msgpack:"e"`
	Seconds     float64   `msgpack:"w"` // working time, over all runs
	Error       string    `msgpack:"x,omitempty"`
}

// SourceFile is one file of a dataset as it was when merged.
type SourceFile struct {
	Path    string `msgpack:"p"`
	Size    int64  `msgpack:"s"`
	ModTime int64  `msgpack:"m"` // ns since the epoch
	Hash    string `msgpack:"h"` // hex sha256 of the bytes on disk
	Lines   int64  `msgpack:"l"`
}

// DatasetRow is a dataset as merged. Rows [FirstRow, FirstRow+Samples) of the
// row index of samples generation SamplesGen are its samples. Lines equals
// Accepted+Duplicates+Blank+Rejected at every checkpoint.
type DatasetRow struct {
	Name        string           `msgpack:"n"`
	ID          uint32           `msgpack:"i"` // part of the sample key; never reused
	Order       int              `msgpack:"o"` // place in the configuration, from 0
	SamplesGen  uint32           `msgpack:"g"`
	FirstRow    int64            `msgpack:"r"`
	Lines       int64            `msgpack:"l"`
	Accepted    int64            `msgpack:"a"`
	Duplicates  int64            `msgpack:"d"`
	Blank       int64            `msgpack:"b"`
	Rejected    int64            `msgpack:"j"`
	Reasons     map[string]int64 `msgpack:"w"` // rejected lines by reason
	Tokens      int64            `msgpack:"t"`
	LossTokens  int64            `msgpack:"s"`
	MaxTokens   int64            `msgpack:"m"`
	Sources     []SourceFile     `msgpack:"f"`
	Fingerprint []Part           `msgpack:"p"`
	Done        bool             `msgpack:"e"`
}

// OrderRow describes the shuffled order. The order itself lies in a file of
// uint32 rows (OrderPath), Hash proves it.
type OrderRow struct {
	ID        uint32 `msgpack:"i"`
	Algorithm string `msgpack:"a"` // numpy or feistel
	Seed      uint64 `msgpack:"s"`
	N         int64  `msgpack:"n"` // training positions, repeats counted
	Eval      int64  `msgpack:"e"` // eval positions, after the training ones
	Merged    int64  `msgpack:"m"` // rows of the merged index it was made from
	// Unused rows of the merged index: subsampled away by a weight below one,
	// and those equal to an eval sample.
	Subsampled int64  `msgpack:"u"`
	EvalTwins  int64  `msgpack:"w"`
	Repeated   int64  `msgpack:"r"` // training positions that a weight above one added
	Hash       string `msgpack:"h"` // hex sha256 of the order file
}

// Decision is what plan concluded about room.
type Decision string

// The decisions.
const (
	Fits        Decision = "fits"
	FitsAfterGC Decision = "fits-after-gc"
	Short       Decision = "short"
)

// PlanRow is the plan in force. Its index lies in PlanPath(ID).
type PlanRow struct {
	ID            uint32   `msgpack:"i"`
	Order         uint32   `msgpack:"o"` // OrderRow.ID
	MaxTokens     int64    `msgpack:"m"` // 0: no cap
	Overlong      string   `msgpack:"v"` // truncate, skip or split
	Drop          []string `msgpack:"d"`
	Layers        []int    `msgpack:"l"`
	Hidden        int      `msgpack:"h"`
	DType         string   `msgpack:"y"` // bf16, fp16, fp32, fp8
	Rows          string   `msgpack:"r"` // all, or a row selection
	Codec         string   `msgpack:"c"`
	Samples       int64    `msgpack:"s"` // positions planned, eval included
	Tokens        int64    `msgpack:"t"` // tokens at those positions
	Dropped       int64    `msgpack:"1"` // positions of dropped datasets
	OverLength    int64    `msgpack:"2"` // positions skipped as too long
	Emptied       int64    `msgpack:"3"` // positions the cap left without a supervised token
	Truncated     int64    `msgpack:"4"` // positions cut by the cap, kept
	LostTokens    int64    `msgpack:"5"` // tokens cut or skipped by the cap
	NewSamples    int64    `msgpack:"6"` // distinct samples to compute
	NewTokens     int64    `msgpack:"7"`
	Reused        int64    `msgpack:"8"` // positions served by older generations
	Repeated      int64    `msgpack:"9"` // positions that repeat one of this plan
	BytesPerToken int64    `msgpack:"b"`
	RawBytes      int64    `msgpack:"w"` // of the new samples
	ExpectedBytes int64    `msgpack:"x"` // on disk, after the codec
	Ratio         float64  `msgpack:"q"` // 0 where not measured
	Seconds       float64  `msgpack:"z"` // expected; 0 where no rate is known
	Rate          float64  `msgpack:"k"` // tokens a second it was computed from
	BlobBytes     int64    `msgpack:"B"` // raw bytes a blob is planned for
	Blobs         int64    `msgpack:"N"`
	DiskFree      int64    `msgpack:"F"`
	Reserve       int64    `msgpack:"R"`
	Reclaimable   int64    `msgpack:"C"`
	Decision      Decision `msgpack:"D"`
	ShortBy       int64    `msgpack:"S"`
	Generation    uint32   `msgpack:"G"` // generation that extracts it; 0: none yet
	SourceModel   string   `msgpack:"M"` // model fingerprint
	Identity      []Part   `msgpack:"I"` // what a generation must agree on to be reused; GenerationRow.Identity is this
	Kind          string   `msgpack:"K"` // of the generation: states, or proof where the plan was limited
}

// Acceptance is a recorded decision: keys as in the YAML, laid over it.
type Acceptance struct {
	Values   map[string]string `msgpack:"v"` // max_tokens, drop, gc, …
	PlanYAML string            `msgpack:"p"` // hash of the plan section it was made for
	At       time.Time         `msgpack:"a"`
}

// GenState is where a generation stands.
type GenState string

// The states of a generation.
const (
	GenBuilding  GenState = "building"
	GenSealed    GenState = "sealed"
	GenAbandoned GenState = "abandoned"
	GenRetired   GenState = "retired"
	GenCondemned GenState = "condemned"
	GenTrashed   GenState = "trashed"
)

// GenerationRow is a generation of hidden states, made here or adopted.
type GenerationRow struct {
	ID          uint32    `msgpack:"i"`
	Name        string    `msgpack:"n"`
	Origin      string    `msgpack:"o"` // made or adopted
	State       GenState  `msgpack:"s"`
	Kind        string    `msgpack:"k"` // states, samples, proof
	Path        string    `msgpack:"p"` // absolute, or relative to the workspace
	Plan        uint32    `msgpack:"l"`
	Identity    []Part    `msgpack:"f"` // model, tokenizer, layers, dtype, engine: what must agree for reuse
	Samples     int64     `msgpack:"1"` // positions
	Distinct    int64     `msgpack:"2"` // samples stored in its own blobs
	Tokens      int64     `msgpack:"3"`
	Bytes       int64     `msgpack:"4"` // on disk
	RawBytes    int64     `msgpack:"5"`
	Blobs       int64     `msgpack:"6"`
	Quarantined int64     `msgpack:"7"`
	Needs       []uint32  `msgpack:"d"` // older generations its index points into
	Pinned      string    `msgpack:"P"` // reason; "" not pinned
	Created     time.Time `msgpack:"c"`
	Sealed      time.Time `msgpack:"e"`
	Changed     time.Time `msgpack:"h"` // last change of state
	Trash       string    `msgpack:"t"` // where it lies while trashed
	Seconds     float64   `msgpack:"w"` // engine seconds spent
	Synthetic   bool      `msgpack:"y"`
	Adopted     *Adopted  `msgpack:"a,omitempty"`

	Losses []LayerLoss `msgpack:"q,omitempty"` // fp8: of its own blobs
}

// Adopted proves that a directory is still the one that was registered.
type Adopted struct {
	Format string `msgpack:"f"`
	Dev    uint64 `msgpack:"d"`
	Inode  uint64 `msgpack:"i"`
	Files  int64  `msgpack:"n"`
	Bytes  int64  `msgpack:"b"` // disk usage, hard links once
	Hash   string `msgpack:"h"` // of the sorted listing: path, size, mtime
}

// LayerLoss is what storing rows of a layer as fp8 cost: relative errors of rows.
type LayerLoss struct {
	Layer int     `msgpack:"l"`
	Rows  int64   `msgpack:"r"`
	Sum   float64 `msgpack:"s"`
	Max   float64 `msgpack:"m"`
}

// AddLosses adds up losses of the same layers; either may be nil.
func AddLosses(a, b []LayerLoss) []LayerLoss {
	out := slices.Clone(a)
	for _, x := range b {
		i := slices.IndexFunc(out, func(o LayerLoss) bool { return o.Layer == x.Layer })
		if i < 0 {
			out = append(out, x)
			continue
		}
		out[i].Rows += x.Rows
		out[i].Sum += x.Sum
		out[i].Max = max(out[i].Max, x.Max)
	}
	return out
}

// BlobRow is a blob that counts.
type BlobRow struct {
	Gen         uint32 `msgpack:"g"`
	No          uint32 `msgpack:"n"`
	Bytes       int64  `msgpack:"b"`
	RawBytes    int64  `msgpack:"r"`
	Samples     int64  `msgpack:"s"`
	Tokens      int64  `msgpack:"t"`
	Quarantined int64  `msgpack:"q"`
	Hash        string `msgpack:"h"` // of the whole file, hex

	Losses []LayerLoss `msgpack:"l,omitempty"` // fp8
}

// QuarantineRow is a sample that failed twice.
type QuarantineRow struct {
	Gen     uint32 `msgpack:"g"`
	Blob    uint32 `msgpack:"b"`
	Entry   uint32 `msgpack:"e"`
	Dataset string `msgpack:"d"`
	Sample  uint64 `msgpack:"s"`
	Reason  string `msgpack:"r"`
}
