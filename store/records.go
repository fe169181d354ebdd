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
	// The file of rejected lines, once the dataset is done; Hash is xxh64, hex.
	RejectsBytes int64  `msgpack:"x"`
	RejectsHash  string `msgpack:"y"`
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
	ID            uint32   `msgpack:"i" json:"id"`
	Order         uint32   `msgpack:"o" json:"order"`      // OrderRow.ID
	MaxTokens     int64    `msgpack:"m" json:"max_tokens"` // 0: no cap
	Overlong      string   `msgpack:"v" json:"overlong"`   // truncate, skip or split
	Drop          []string `msgpack:"d" json:"drop"`
	Layers        []int    `msgpack:"l" json:"layers"`
	Hidden        int      `msgpack:"h" json:"hidden_size"`
	DType         string   `msgpack:"y" json:"dtype"` // bf16, fp16, fp32, fp8
	Rows          string   `msgpack:"r" json:"rows"`  // all, or a row selection
	Codec         string   `msgpack:"c" json:"codec"`
	Samples       int64    `msgpack:"s" json:"samples"`     // positions planned, eval included
	Tokens        int64    `msgpack:"t" json:"tokens"`      // tokens at those positions
	Dropped       int64    `msgpack:"1" json:"dropped"`     // positions of dropped datasets
	OverLength    int64    `msgpack:"2" json:"over_length"` // positions skipped as too long
	Emptied       int64    `msgpack:"3" json:"emptied"`     // positions the cap left without a supervised token
	Truncated     int64    `msgpack:"4" json:"truncated"`   // positions cut by the cap, kept
	LostTokens    int64    `msgpack:"5" json:"lost_tokens"` // tokens cut or skipped by the cap
	NewSamples    int64    `msgpack:"6" json:"new_samples"` // distinct samples to compute
	NewTokens     int64    `msgpack:"7" json:"new_tokens"`
	Reused        int64    `msgpack:"8" json:"reused"`   // positions served by older generations
	Repeated      int64    `msgpack:"9" json:"repeated"` // positions that repeat one of this plan
	BytesPerToken int64    `msgpack:"b" json:"bytes_per_token"`
	RawBytes      int64    `msgpack:"w" json:"raw_bytes"`      // of the new samples
	ExpectedBytes int64    `msgpack:"x" json:"expected_bytes"` // on disk, after the codec
	Ratio         float64  `msgpack:"q" json:"ratio"`          // 0 where not measured
	Seconds       float64  `msgpack:"z" json:"seconds"`        // expected; 0 where no rate is known
	Rate          float64  `msgpack:"k" json:"rate"`           // tokens a second it was computed from
	BlobBytes     int64    `msgpack:"B" json:"blob_bytes"`     // raw bytes a blob is planned for
	Blobs         int64    `msgpack:"N" json:"blobs"`
	DiskFree      int64    `msgpack:"F" json:"disk_free"`
	Reserve       int64    `msgpack:"R" json:"reserve"`
	Reclaimable   int64    `msgpack:"C" json:"reclaimable"`
	Decision      Decision `msgpack:"D" json:"decision"`
	ShortBy       int64    `msgpack:"S" json:"short_by"`
	Generation    uint32   `msgpack:"G" json:"generation"`   // generation that extracts it; 0: none yet
	SourceModel   string   `msgpack:"M" json:"source_model"` // model fingerprint
	Identity      []Part   `msgpack:"I" json:"identity"`     // what a generation must agree on to be reused; GenerationRow.Identity is this
	Kind          string   `msgpack:"K" json:"kind"`         // of the generation: states, or proof where the plan was limited
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
	ID          uint32    `msgpack:"i" json:"id"`
	Name        string    `msgpack:"n" json:"name"`
	Origin      string    `msgpack:"o" json:"origin"` // made or adopted
	State       GenState  `msgpack:"s" json:"state"`
	Kind        string    `msgpack:"k" json:"kind"` // states, samples, proof
	Path        string    `msgpack:"p" json:"path"` // absolute, or relative to the workspace
	Plan        uint32    `msgpack:"l" json:"plan"`
	Identity    []Part    `msgpack:"f" json:"identity"` // model, tokenizer, layers, dtype, engine: what must agree for reuse
	Samples     int64     `msgpack:"1" json:"samples"`  // positions; while building, those that committed blobs and older generations serve
	Distinct    int64     `msgpack:"2" json:"distinct"` // samples stored in its own blobs
	Tokens      int64     `msgpack:"3" json:"tokens"`
	Bytes       int64     `msgpack:"4" json:"bytes"` // on disk
	RawBytes    int64     `msgpack:"5" json:"raw_bytes"`
	Blobs       int64     `msgpack:"6" json:"blobs"`
	Quarantined int64     `msgpack:"7" json:"quarantined"`
	Needs       []uint32  `msgpack:"d" json:"needs"`  // older generations its index points into
	Pinned      string    `msgpack:"P" json:"pinned"` // reason; "" not pinned
	Created     time.Time `msgpack:"c" json:"created"`
	Sealed      time.Time `msgpack:"e" json:"sealed"`
	Changed     time.Time `msgpack:"h" json:"changed"` // last change of state
	Trash       string    `msgpack:"t" json:"trash"`   // where it lies while trashed
	Seconds     float64   `msgpack:"w" json:"seconds"` // in which any engine worked
	Synthetic   bool      `msgpack:"y" json:"synthetic"`
	Adopted     *Adopted  `msgpack:"a,omitempty" json:"adopted,omitempty"`

	Losses []LayerLoss `msgpack:"q,omitempty" json:"losses,omitempty"` // fp8: of its own blobs
}

// Adopted proves that a directory is still the one that was registered.
type Adopted struct {
	Format string `msgpack:"f" json:"format"`
	Dev    uint64 `msgpack:"d" json:"dev"`
	Inode  uint64 `msgpack:"i" json:"inode"`
	Files  int64  `msgpack:"n" json:"files"`
	Bytes  int64  `msgpack:"b" json:"bytes"` // disk usage, hard links once
	Hash   string `msgpack:"h" json:"hash"`  // of the sorted listing: path, size, mtime
	// Boot is the boot in which Dev was read: the next may number devices anew.
	Boot string `msgpack:"o,omitempty" json:"boot,omitempty"`
	// Written is when the newest of its files was.
	Written time.Time `msgpack:"w,omitempty" json:"written,omitzero"`
}

// LayerLoss is what storing rows of a layer as fp8 cost: relative errors of rows.
type LayerLoss struct {
	Layer int     `msgpack:"l" json:"layer"`
	Rows  int64   `msgpack:"r" json:"rows"`
	Sum   float64 `msgpack:"s" json:"sum"`
	Max   float64 `msgpack:"m" json:"max"`
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
