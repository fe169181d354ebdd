// Package genindex reads and writes what describes a generation: index files
// (.ebi), MANIFEST.json and LEASE. store/FORMAT.md specifies them.
//
// An index is the table from a position in the order to the blob entry that
// holds its states, and the table of the entries of a generation's own blobs. A
// plan is such a file before anything is extracted (plans/NNNNNN.ebi, and
// generations/NNNNNN/plan.ebi); a sealed generation's index.ebi is the same with
// the positions of quarantined samples taken out; entries keep their numbers.
//
// # Layout
//
// Fixed rows in sections, so that any of millions of positions is found without
// reading the others; checksums by block of 64 KiB. A Writer takes entries and
// positions mixed: it spools all but the entries to temporary files beside the
// index and puts them in their place at the end.
//
// # Crash safety
//
// Index and manifest appear under their names complete and durable, or not at
// all.
//
// # Concurrency
//
// A Writer belongs to one goroutine. A File is mapped and may be used from many
// at once; Open has read and checked every byte, so that no accessor fails. The
// file must not be changed while it is open: like every file of a generation it
// is immutable, and the lease keeps it from being deleted.
package genindex
