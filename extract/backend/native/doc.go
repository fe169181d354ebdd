// Package native computes hidden states in this process, on the CPU, with
// nothing installed: prefill of Llama-shaped decoders from safetensors or GGUF
// files, without logits.
//
// # Layout
//
// The weights stay mapped. For each layer of a batch they are packed, in
// Options.Compute, into one buffer that the next layer reuses; a batch holds
// several samples, so packing costs little. A layer is four passes over the
// batch, each shared out to the threads: norm and q, k, v by blocks of rows;
// packing of k and v; attention by sample, head and block of queries; the rest
// of the layer by blocks of rows. Attention runs over blocks of keys with a
// running softmax: no matrix of T by T exists.
//
// What memory is needed is known before anything is computed: see Need.
//
// # Same bytes
//
// A row of a result depends on its own sample's ids up to it and on nothing
// else: not on the other samples of a batch, not on Threads, BatchTokens or
// Memory. Rows of a sample are rows of its prefix (but for rope type
// "dynamic" beyond max_position_embeddings, where the model itself looks at
// the length). Blocks of keys lie at fixed positions of the sample, every sum
// has a fixed order. With Compute "fp32" all kernel sets of an architecture
// give the same bytes; with "bf16" each family of kernels gives its own, and
// Info.Version names it, so that work begun with others is noticed.
//
// # Concurrency
//
// A Backend may be described at any time and served once at a time; it has one
// slot, which uses all the threads.
package native
