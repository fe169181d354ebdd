// Package codec compresses chunks of hidden states without loss.
//
// Trained networks leave the mantissas of their states close to random and the
// exponents far from it, so general compressors see noise and gain nothing.
// Planes and Dense take each value apart, store sign and mantissa as they are
// and compress the exponents alone.
//
// # Layout
//
// The bytes are specified in store/FORMAT.md, section "Codecs". An encoded
// chunk holds neither its codec nor its raw size: the chunk's header does. Any
// chunk that would gain less than 2% is stored Raw, whatever was asked, and so
// is one that is no whole number of values.
//
// # Portability
//
// Encoded bytes depend on the input alone: not on the machine, on what the
// encoder saw before, or on whether the kernels of this package run as AVX2 or
// AVX-512 assembly (chosen at run time on amd64) or as portable Go.
//
// # Concurrency
//
// Encoders and decoders hold scratch space of a few times the largest chunk
// seen; each serves one goroutine at a time.
package codec
