// Package plan decides what is extracted, into which blobs, and whether it
// fits: from the lengths of the merged samples, the shuffled order and what
// older generations hold already.
//
// # Layout
//
// A plan is an index file (plans/NNNNNN.ebi, see store/FORMAT.md) and a row in
// the ledger. The index points each position of the order at a blob entry, of
// this plan or of an older sealed generation, and lists the entries of this
// plan's blobs in physical order. Blob boundaries follow from lengths alone.
//
// Memory does not grow with tokens, and by some 40 bytes a distinct sample:
// hashes stay in the mapped row index. What the report and the what-if table
// need of the lengths are one-dimensional curves, bounded by the longest sample.
//
// # Accounting
//
// Positions after weights and splits = planned + dropped + over-length +
// emptied, and tokens before the cap = tokens planned + tokens lost. Both are
// checked whenever the order is gone over, and the second pass, which writes
// the index, must find what the first did.
//
// # Alternatives
//
// The what-if table is computed from curves of lengths: of the positions, and
// of the distinct samples grouped by the datasets that show them and by how many
// of their rows a sealed generation of the alternative's shape holds. So each
// row counts what may be reused, above the plan's own cap too. Windows of samples
// that are split cannot be told without their tokens: rows that depend on
// them say so and count them all.
//
// # Crash safety
//
// The index is complete and on disk before one ledger transaction puts the
// plan in force. What a crash leaves before that is a file that nothing names;
// its number is not given again.
//
// # Concurrency
//
// Functions that take a workspace must not run at once on it; WhatIf, Story,
// Choices and the renderers are pure.
package plan
