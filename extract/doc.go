// Package extract runs the planned samples through a backend into blobs and
// seals the generation.
//
//	plan ─▶ take a blob ─▶ slot: requests in physical order ─▶ backend
//	                                                             │ chunks
//	ledger ◀─ commit ◀─ blob.Writer ◀─ in physical order ◀─ checks
//
// # Layout
//
// A run has one slot for each independent engine. A slot has a session (one
// call of Backend.Serve) and a few jobs: a job is one slot's work on one blob.
// When all requests of a job are sent, those of the next blob follow, so that
// the engine never waits for a blob to be finished.
//
// # Crash safety
//
// A blob counts once it is under its final name and in the ledger, in this
// order. What a crash leaves between the two is verified and adopted by the next
// run; anything else is done again. The bytes of blobs, index and manifest depend
// on plan and states alone: they hold no time, host, slot or attempt.
//
// # Memory
//
// A request is sent only when the slot has credit for its rows, which are kept in
// slabs until it is their turn in the blob. A sample larger than all the credit
// is sent when all the credit is free, and its rows go to the blob as they come.
//
// # Concurrency
//
// run.mu guards what is to be done and who does it (slots, requests, credit);
// job.mu guards a blob's writer and is never taken while run.mu is held.
package extract
