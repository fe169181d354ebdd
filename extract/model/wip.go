// Package model reads models: sizes, fingerprints and weights of Hugging Face
// directories and GGUF files. Weights are mapped, not copied.
package model

import (
	"context"
	"io"
)

// Config holds a model's sizes. Where the file nests them (text_config), they
// are the language model's.
type Config struct {
	Path      string
	Arch      string // architectures[0], or general.architecture of a GGUF
	ModelType string
	Layers    int
	Hidden    int
	Vocab     int
	MaxPos    int
	Weights   bool   // weight files are at hand
	Tokenizer string // fingerprint of tokenizer files, "" where there are none
}

// ReadConfig reads the sizes of a HF directory (config.json alone suffices) or a .gguf.
func ReadConfig(path string) (Config, error) { panic("wip") }

// Fingerprint identifies a model by config, index, shard sizes and header
// hashes: fast, for terabytes too.
func Fingerprint(ctx context.Context, path string) (string, error) { panic("wip") }

// Head is a model's final norm and lm_head (and embeddings), mapped.
type Head struct{}

// OpenHead opens the head of the model at path; ErrNoWeights where it has none.
func OpenHead(path string) (*Head, error) { panic("wip") }

// Score is how well one last-layer state predicts the next token.
type Score struct {
	Top1       bool    // lm_head(norm(x)) ranks it first
	LogProb    float64 // of lm_head(norm(x))
	RawTop1    bool    // the same without the norm: better than with it means post-norm states
	RawLogProb float64
}

// Score scores rows of last-layer states ([len(next), Hidden], dtype) against
// the tokens that follow them.
func (h *Head) Score(ctx context.Context, rows []byte, dtype string, next []uint32) ([]Score, error) {
	panic("wip")
}

// WriteSafetensors writes embeddings, final norm and lm_head as a safetensors
// file (target_head.safetensors): what trainers need of the target model.
func (h *Head) WriteSafetensors(w io.Writer) error { panic("wip") }
func (h *Head) Close() error                       { panic("wip") }
