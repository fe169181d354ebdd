// Package exporter drives exports: it reads samples out of the store in the
// order of the plan, or of the shuffle where there is no plan yet, and puts what
// a layout makes of them in place.
//
// # Layout
//
//	positions ──▶ readers (many, each a row) ──▶ in order ──▶ one stream a split    jsonl
//	generation ──▶ writers (many, each a file) ──▶ in order ──▶ files.jsonl         with states
//
// # Crash safety
//
// A file appears under its name complete and durable, or not at all. An export
// that was interrupted begins anew and gives the same bytes; a file of other
// content is not replaced unless that is asked for. An export with states goes on
// where it was: export.json says of what generation it is, and nothing else is
// mixed into its directory; a file that files.jsonl lists was durable before it
// was listed, and is taken as done if it has the size that the list says.
//
// # Concurrency
//
// Readers run side by side as far as a budget of bytes allows; the order of
// results does not depend on them.
package exporter
