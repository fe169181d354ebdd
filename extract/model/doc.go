// Package model reads models: sizes, fingerprints and weights of Hugging Face
// directories and GGUF files. Weights are mapped, not copied.
//
// # Layout
//
// ReadConfig and Fingerprint need config.json (or a GGUF header) and no
// weights, and take any architecture. OpenHead needs the embeddings, the final
// norm and lm_head alone, which suffices to judge last-layer states and to
// train a drafter. OpenDecoder reads all that a forward pass needs, strictly:
// an architecture or option that it does not know is refused by name, since
// ignoring it would give wrong states that look right.
//
// Below it, tensor names and decodes number formats, mapped maps files,
// safetensors and gguf read the two file formats, and kernel computes.
//
// # Concurrency
//
// A Head and a Decoder may be shared by goroutines until Close.
package model
