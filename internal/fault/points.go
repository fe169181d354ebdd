package fault

import "slices"

// Point names a place where a drill may strike.
type Point string

// The table of points: every point of the program is listed here, and a drill
// fails when one of them is never reached.
const (
	LedgerBeforeAppend  Point = "ledger.before-append"  // before the checkpoints.jsonl line
	LedgerAfterAppend   Point = "ledger.after-append"   // line fsynced, bbolt not yet committed
	LedgerAfterCommit   Point = "ledger.after-commit"   // bbolt committed
	LedgerCompact       Point = "ledger.compact"        // before the compacted log replaces the old
	SamplesBeforeBatch  Point = "samples.before-batch"  // before a Badger batch
	SamplesAfterBatch   Point = "samples.after-batch"   // batch durable, index not yet
	SamplesAfterIndex   Point = "samples.after-index"   // index durable, cursor not yet
	SamplesBeforeSeal   Point = "samples.before-seal"   // all rows in, not yet sealed
	MergeBeforeDataset  Point = "merge.before-dataset"  // before a dataset's first line
	MergeAfterDataset   Point = "merge.after-dataset"   // after a dataset was counted
	ShuffleBeforeOrder  Point = "shuffle.before-order"  // before the order file
	ShuffleAfterOrder   Point = "shuffle.after-order"   // file durable, ledger not yet
	PlanBeforeIndex     Point = "plan.before-index"     // before the plan's index file
	PlanAfterIndex      Point = "plan.after-index"      // file durable, ledger not yet
	ExtractBegin        Point = "extract.begin"         // generation row written, directory not yet
	BlobBeforeSync      Point = "blob.before-sync"      // all chunks written
	BlobBeforeRename    Point = "blob.before-rename"    // fsynced under its temporary name
	BlobAfterRename     Point = "blob.after-rename"     // renamed, ledger not yet
	BlobAfterCommit     Point = "blob.after-commit"     // in the ledger
	SealBeforeIndex     Point = "seal.before-index"     // before index.ebi
	SealBeforeManifest  Point = "seal.before-manifest"  // before MANIFEST.json
	SealAfterManifest   Point = "seal.after-manifest"   // MANIFEST.json durable, ledger not yet
	SealAfterCommit     Point = "seal.after-commit"     // sealed in the ledger
	GCBeforeCondemn     Point = "gc.before-condemn"     // plan shown, nothing marked
	GCAfterCondemn      Point = "gc.after-condemn"      // condemned in the ledger, not yet moved
	GCAfterTrash        Point = "gc.after-trash"        // moved to trash, ledger not yet
	GCBeforeUnlink      Point = "gc.before-unlink"      // before a file in trash is unlinked
	GCAfterUnlink       Point = "gc.after-unlink"       // directory gone, ledger not yet
	ExportBeforeRename  Point = "export.before-rename"  // file complete under its temporary name
	ExportAfterRename   Point = "export.after-rename"   // one exported file in place
	StatusBeforeRename  Point = "status.before-rename"  // status.json.tmp written
	ReserveBeforeUnlink Point = "reserve.before-unlink" // before reserve.bin is released
)

// Points returns the whole table, in the order of a run.
func Points() []Point {
	return []Point{
		LedgerBeforeAppend, LedgerAfterAppend, LedgerAfterCommit, LedgerCompact,
		SamplesBeforeBatch, SamplesAfterBatch, SamplesAfterIndex, SamplesBeforeSeal,
		MergeBeforeDataset, MergeAfterDataset, ShuffleBeforeOrder, ShuffleAfterOrder,
		PlanBeforeIndex, PlanAfterIndex, ExtractBegin,
		BlobBeforeSync, BlobBeforeRename, BlobAfterRename, BlobAfterCommit,
		SealBeforeIndex, SealBeforeManifest, SealAfterManifest, SealAfterCommit,
		GCBeforeCondemn, GCAfterCondemn, GCAfterTrash, GCBeforeUnlink, GCAfterUnlink,
		ExportBeforeRename, ExportAfterRename, StatusBeforeRename, ReserveBeforeUnlink,
	}
}

func known(p Point) bool { return slices.Contains(Points(), p) }
