// Package exporter drives exports: it reads samples and states out of the
// store in their order, and puts what a layout makes of them in place.
//
// # Layout
//
//	positions ──▶ readers (many, each a row) ──▶ in order ──▶ one stream, or a file a row
//
// JSONL writes a split as one stream. Run writes a directory of one file a row
// with a log beside it (LogName): a header that says what is exported, then a
// line with size and sha256 for each file in place.
//
// # Crash safety
//
// A file appears under its name complete and durable, or not at all. The log
// names a file after that; what a log names is not written again, what it does
// not name is, whether or not a file of that name exists. A stream that was
// interrupted begins anew.
//
// # Concurrency
//
// Readers run side by side as far as a budget of bytes allows; the order of
// results does not depend on them. Two exports into one directory exclude each
// other by a lock on its log.
package exporter
