// Package export says what a trainer's layout is made from: one row a
// position of the order, its token ids, its mask and, where the layout holds
// them, its hidden states. The packages below it turn that into the files that
// SpecForge, speculators and Model-Optimizer read, and into JSON lines for any
// other program. They know tensors and token ids and nothing of where these
// come from.
//
// # Concurrency
//
// A Sink is called from many goroutines at once, each with a row of its own.
package export
