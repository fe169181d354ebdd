package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"eaglebatch/internal/fsx"
)

// Sentinels; the command line maps each to an exit code and a hint.
var (
	ErrNoWorkspace = errors.New("no workspace here")
	ErrInUse       = errors.New("workspace in use")
	ErrNewer       = errors.New("written by a newer version")
	ErrCorrupt     = errors.New("damage found")
	ErrDiskFull    = errors.New("disk full or below the reserve")
	ErrDecision    = errors.New("waiting for a decision")
	ErrStopped     = errors.New("stopped as asked")
)

// CorruptError is damage: it names what, where and why, and matches ErrCorrupt.
type CorruptError struct {
	Path   string
	Key    string // record key or chunk, where there is one
	Offset int64  // -1 where not known
	Err    error
}

func (e *CorruptError) Error() string   { return fmt.Sprintf("%s: %v", e.Path, e.Err) }
func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }

// InUseError names who holds the workspace. Matches ErrInUse.
type InUseError struct {
	PID     int
	BootID  string
	Started time.Time
	Command string
}

func (e *InUseError) Error() string { return fmt.Sprintf("workspace in use by pid %d", e.PID) }
func (e *InUseError) Unwrap() error { return ErrInUse }

// SpaceError says how much room is missing. Matches ErrDiskFull.
type SpaceError struct {
	Path             string
	Free, Need, Keep int64 // need beyond what is kept as reserve
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("%s: need %d more bytes", e.Path, e.Need+e.Keep-e.Free)
}
func (e *SpaceError) Unwrap() error { return ErrDiskFull }

// DecisionError carries what to decide and the exact commands. Matches ErrDecision.
type DecisionError struct {
	What     string   // one line
	Details  []string // shown below it
	Commands []string // exact, one of which decides
}

func (e *DecisionError) Error() string { return e.What }
func (e *DecisionError) Unwrap() error { return ErrDecision }

// Options opens a workspace.
type Options struct {
	FS      *fsx.FS
	Memory  int64  // bound for Badger and caches; 0: 512 MiB
	Command string // what is running, for run.lock
	Reserve int64  // size of reserve.bin; 0: default
}

// Workspace is an open workspace: the writer, holding run.lock.
type Workspace struct{}

// Init makes a workspace in dir if there is none, and opens it.
func Init(ctx context.Context, dir string, o Options) (*Workspace, error) { panic("wip") }

// Open opens an existing workspace for writing.
func Open(ctx context.Context, dir string, o Options) (*Workspace, error) { panic("wip") }

func (w *Workspace) Close() error                         { panic("wip") }
func (w *Workspace) Dir() string                          { panic("wip") }
func (w *Workspace) FS() *fsx.FS                          { panic("wip") }
func (w *Workspace) RootID() string                       { panic("wip") }
func (w *Workspace) SamplesDir(gen uint32) string         { panic("wip") } // samples/NNNNNN
func (w *Workspace) GenerationDir(r GenerationRow) string { panic("wip") } // resolves r.Path
func (w *Workspace) PlanPath(id uint32) string            { panic("wip") } // plans/NNNNNN.ebi
func (w *Workspace) OrderPath(id uint32) string           { panic("wip") } // orders/NNNNNN.ebo
func (w *Workspace) TrashDir() string                     { panic("wip") }
func (w *Workspace) RejectsPath(dataset string) string    { panic("wip") }
func (w *Workspace) LogsDir() string                      { panic("wip") }

// CheckSpace fails with *SpaceError when writing need more bytes under path
// would leave less than keep free.
func CheckSpace(path string, need, keep int64) error { panic("wip") }

// ReleaseReserve removes reserve.bin so that gc and stat can work on a full
// disk; RestoreReserve makes it again when there is room.
func (w *Workspace) ReleaseReserve() error { panic("wip") }
func (w *Workspace) RestoreReserve() error { panic("wip") }

// WriteOrder writes the order file of id: n uint32 rows from next, in order,
// atomically, and returns its hex sha256.
func (w *Workspace) WriteOrder(ctx context.Context, id uint32, rows iter.Seq[uint32]) (hash string, n int64, err error) {
	panic("wip")
}

// Order is an open order file (mapped).
type Order struct{}

// OpenOrder opens the order file of r and checks its length; Verify its hash.
func (w *Workspace) OpenOrder(r OrderRow) (*Order, error) { panic("wip") }
func (o *Order) Len() int64                               { panic("wip") }
func (o *Order) At(i int64) uint32                        { panic("wip") }
func (o *Order) Verify() error                            { panic("wip") }
func (o *Order) Close() error                             { panic("wip") }

// Reader reads ledger rows. Tx and Snapshot are Readers.
type Reader interface {
	Phase(name string) (PhaseRow, bool, error)
	Datasets() ([]DatasetRow, error) // by Order
	Order() (OrderRow, bool, error)  // in force
	Plan() (PlanRow, bool, error)    // in force
	PlanByID(id uint32) (PlanRow, bool, error)
	Acceptance() (Acceptance, bool, error)
	Generation(id uint32) (GenerationRow, bool, error)
	Generations() ([]GenerationRow, error) // by ID
	Blobs(gen uint32) ([]BlobRow, error)   // by No
	Quarantine(gen uint32) ([]QuarantineRow, error)
	Value(key string) ([]byte, bool, error) // small private records: "probe/…", "canary/…", "rejects-accepted/…"
}

// Tx changes the ledger. Everything put in one Update becomes durable in one
// step: one checkpoints.jsonl line (fsync), then one bbolt transaction.
type Tx struct{ Reader }

func (tx *Tx) PutPhase(PhaseRow) error             { panic("wip") }
func (tx *Tx) PutDataset(DatasetRow) error         { panic("wip") }
func (tx *Tx) DeleteDataset(name string) error     { panic("wip") }
func (tx *Tx) PutOrder(OrderRow) error             { panic("wip") } // becomes the one in force
func (tx *Tx) PutPlan(PlanRow) error               { panic("wip") } // becomes the one in force
func (tx *Tx) PutAcceptance(Acceptance) error      { panic("wip") }
func (tx *Tx) ClearAcceptance() error              { panic("wip") }
func (tx *Tx) PutGeneration(GenerationRow) error   { panic("wip") }
func (tx *Tx) PutBlob(BlobRow) error               { panic("wip") }
func (tx *Tx) PutQuarantine(QuarantineRow) error   { panic("wip") }
func (tx *Tx) PutValue(key string, v []byte) error { panic("wip") } // nil deletes
// Next returns the next number of a sequence ("samples", "order", "plan",
// "generation", "dataset"); numbers only grow and are never given twice.
func (tx *Tx) Next(seq string) (uint32, error) { panic("wip") }

// View reads the ledger; Update changes it. label names the change in errors.
func (w *Workspace) View(fn func(Reader) error) error                                   { panic("wip") }
func (w *Workspace) Update(ctx context.Context, label string, fn func(*Tx) error) error { panic("wip") }

// Snapshot is a lock-free look at a workspace, for stat: it opens neither
// bbolt nor Badger and takes no lock.
type Snapshot struct {
	Reader
	Live   bool       // a writer holds run.lock
	Holder InUseError // who, where Live
	AsOf   time.Time
	Status *Status // the last status.json, nil where there is none
}

// Inspect reads the state of the workspace in dir.
func Inspect(dir string) (*Snapshot, error) { panic("wip") }

// Status is the live view in status.json.
type Status struct {
	Schema   int                `json:"schema"`
	PID      int                `json:"pid"`
	BootID   string             `json:"boot_id"`
	Command  string             `json:"command"`
	Phase    string             `json:"phase"`
	Unit     string             `json:"unit"`
	Done     int64              `json:"done"`
	Total    int64              `json:"total"`
	Rate     map[string]float64 `json:"rate"` // units, tokens and bytes a second
	ETA      float64            `json:"eta_seconds"`
	Gauges   map[string]float64 `json:"gauges"`
	Waiting  string             `json:"waiting,omitempty"`
	LastNote string             `json:"last_note,omitempty"`
	Seq      uint64             `json:"seq"` // last ledger change it reflects
	Updated  time.Time          `json:"updated"`
	Clean    bool               `json:"clean"`     // the writer ended by itself
	ExitCode int                `json:"exit_code"` // where Clean
}

// WriteStatus replaces status.json; it is advisory and not fsynced.
func (w *Workspace) WriteStatus(Status) error { panic("wip") }

// RebuildManifest makes manifest.db anew from checkpoints.jsonl.
func RebuildManifest(ctx context.Context, dir string, o Options) error { panic("wip") }

var _ io.Closer = (*Workspace)(nil)
