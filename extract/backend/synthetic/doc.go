// Package synthetic is a backend that makes hidden states up: reproducible
// values of any shape, with the exponent statistics of real activations, at a
// settable rate. It rehearses a night (disk, memory, hours) without a model,
// and its scripted faults are the drills' misbehaving engine.
//
// # Layout
//
// A row is a row of a precomputed pool (log-normal channel scales, a few
// outlier channels, log-normal token scale, scale growing with the layer) whose
// sign and mantissa bits are mixed with noise. Both are chosen by a hash over
// the token ids up to the row, so a row depends on nothing but its prefix, the
// layer id and the seed.
//
// # Concurrency
//
// A Backend may be used from many goroutines; a slot's Serve belongs to one
// caller at a time.
package synthetic
