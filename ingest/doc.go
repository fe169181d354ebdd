// Package ingest merges tokenized datasets into the workspace: every line of
// every source becomes exactly one of accepted, duplicate, blank or rejected
// with a reason, and is counted as that.
//
// # Records
//
// A line is one JSON object. Ids come from input_ids, or from the lists prompt,
// reasoning (or think), response (or resp) and tool_calls (or tool), joined in
// this order with the ends of the parts kept. What is supervised comes from
// loss_mask, else from labels (-100 or the id at its own place), else it is
// everything behind the prompt. Where a line has both, they must say the same,
// unless labels leave nothing out. Trailing padding that attention_mask names is
// cut off. What is JSON is exactly what encoding/json says.
//
// # Layout
//
//	reader ──▶ parsers (all cores) ──▶ committer ──▶ samples, rejects, ledger
//
// The reader cuts files into blocks of whole lines; the committer takes them in
// the order of the files, so that neither order nor bytes depend on the number
// of parsers. Text on its way is bounded by a budget; a line longer than
// MaxLine is rejected without being held.
//
// # Crash safety
//
// A batch of samples is durable, then the rejected lines are, then one ledger
// change moves the dataset's counts and the cursor (file, offset, line, length
// of the rejects file, state of the file's hash) together. A run that starts
// again truncates what lies behind the cursor and reads on from there.
//
// # Concurrency
//
// Run starts its own goroutines and has ended them when it returns. Nothing
// here may run twice at once on one workspace.
package ingest
