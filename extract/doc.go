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
// # Whose fault
//
// A sample that fails is held until the slot's engine answers another one that it
// was asked for later, and then tried again. One that fails twice, or for good, is
// held in the same way and then left out. Where no other is left to ask for, the
// canary's answer decides. A sample that an engine died at, and died at again when
// it was alone, is held through the next session likewise. A slot that fails at 8
// samples in a row has an engine that is not well: its session ends, none of the samples is to blame, and it is tried again
// later, at most half a minute apart; until it answers a sample, its canary says
// nothing. Other slots go on, and take over its blobs when they have nothing else
// to do. The run ends once no slot has got a sample for as long as patience, unless
// one is still at work. Samples that an older generation had to leave out are not
// counted: they may all fail again.
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
