// Package config reads eaglebatch.yaml. Unknown keys are refused with their
// line and the nearest known key, so that a misspelt option never silently
// keeps its default through a night.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/human"

	"go.yaml.in/yaml/v3"
)

// ErrConfig is matched by every error of the configuration.
var ErrConfig = errors.New("configuration")

// Config is a whole configuration; every field has its default set by Load.
type Config struct {
	Work     string    `yaml:"work"`
	Datasets []Dataset `yaml:"datasets"`
	Model    string    `yaml:"model"`
	Merge    Merge     `yaml:"merge"`
	Shuffle  Shuffle   `yaml:"shuffle"`
	Plan     Plan      `yaml:"plan"`
	GC       GC        `yaml:"gc"`
	Extract  Extract   `yaml:"extract"`

	File string `yaml:"-"` // where it was read from
	// PlanText is the plan section as written: a recorded decision lapses when
	// it changes.
	PlanText string `yaml:"-"`
}

// Dataset is one tokenized dataset.
type Dataset struct {
	Name   string   `yaml:"name"`
	Path   []string `yaml:"path"`   // files, directories, globs
	Weight float64  `yaml:"weight"` // 1: as it is; 0.5: a seeded half; 2: twice
	Eval   int64    `yaml:"eval"`   // samples set aside
}

// Merge configures the merge.
type Merge struct {
	Dedup         string      `yaml:"dedup"` // content or none
	MaxRejects    human.Share `yaml:"max_rejects"`
	MinLossTokens int         `yaml:"min_loss_tokens"`
	VocabSize     int         `yaml:"vocab_size"` // 0: the model's
}

// Shuffle configures the shuffle.
type Shuffle struct {
	Seed      uint64 `yaml:"seed"`
	Algorithm string `yaml:"algorithm"` // numpy or feistel
}

// Plan configures the plan.
type Plan struct {
	Layers           Layers      `yaml:"layers"`                 // auto or a list of layer ids
	MaxTokens        int64       `yaml:"max_tokens"`             // 0: no cap
	Overlong         string      `yaml:"overlong"`               // truncate, skip or split
	MaxDatasetTokens int64       `yaml:"max_tokens_per_dataset"` // training tokens taken of each dataset, the first in the order; 0: all
	DType            string      `yaml:"dtype"`                  // bf16, fp16, fp32, or fp8, which loses precision
	Rows             string      `yaml:"rows"`                   // all, …
	Drop             []string    `yaml:"drop"`
	Reserve          human.Share `yaml:"reserve"`   // of the volume, or a size
	BlobSize         human.Size  `yaml:"blob_size"` // 0: chosen
	TokensPerSecond  float64     `yaml:"tokens_per_second"`
	GPUs             int         `yaml:"gpus"`
	GPUHourPrice     float64     `yaml:"gpu_hour_price"`
	Proof            int64       `yaml:"proof"` // samples of the proof
}

// GC configures the garbage collector.
type GC struct {
	Adopt  []Adopt       `yaml:"adopt"`
	Keep   int           `yaml:"keep"`
	MinAge time.Duration `yaml:"min_age"`
}

// Adopt names a directory that eaglebatch did not make.
type Adopt struct {
	Name string `yaml:"name"`
	Path string `yaml:"path"`
}

// Extract configures the extraction.
type Extract struct {
	Backend        string        `yaml:"backend"` // native, vllm, sglang, worker, synthetic
	Memory         human.Size    `yaml:"memory"`
	Threads        int           `yaml:"threads"`
	Codec          string        `yaml:"codec"`
	EngineDType    string        `yaml:"engine_dtype"` // what the engine gives where plan.dtype is fp8: bf16, fp16 or fp32
	MaxQuarantined human.Share   `yaml:"max_quarantined"`
	MinTop1        float64       `yaml:"min_top1"` // share of supervised rows that must rank the next token first; 0 turns the check off
	Patience       time.Duration `yaml:"patience"` // without any sample while engines fail, then the run stops
	Stall          time.Duration `yaml:"stall"`    // without an answer, after which an engine is taken for dead; 0: ten minutes, an hour before its first
	Grace          time.Duration `yaml:"grace"`
	Compute        string        `yaml:"compute"` // native: fp32 or bf16
	Endpoints      []string      `yaml:"endpoints"`
	SharedDir      string        `yaml:"shared_dir"` // vllm: where the server writes states
	APIKeyEnv      string        `yaml:"api_key_env"`
	APIKeyFile     string        `yaml:"api_key_file"`
	Command        []string      `yaml:"command"` // worker: program and arguments; empty: the shipped one
	Workers        int           `yaml:"workers"`
	Device         string        `yaml:"device"`      // worker: cpu, cuda …
	InFlight       human.Size    `yaml:"in_flight"`   // bytes of states in flight at an endpoint; 0: chosen
	Rate           float64       `yaml:"rate"`        // synthetic: tokens a second; 0: as fast as it can
	Faults         string        `yaml:"faults"`      // synthetic: scripted faults
	Concurrency    int           `yaml:"concurrency"` // samples in flight at an endpoint; 0: chosen
}

// Layers is "auto" or a list of layer ids.
type Layers struct {
	Auto bool
	IDs  []int
}

// For returns the layer ids for a model of n decoder layers: auto is
// [2, n/2, n-3, n], the ids that EAGLE-3 trainers expect, in ascending order
// and each once.
func (l Layers) For(n int) ([]int, error) {
	ids := l.IDs
	if l.Auto {
		// In a shallow model these coincide, cross or fall below the embeddings.
		ids = []int{2, n / 2, max(0, n-3), n}
		slices.Sort(ids)
		ids = slices.DeleteFunc(slices.Compact(ids), func(id int) bool { return id > n })
	}
	out := []int{}
	for _, id := range ids {
		if id < 0 || id > n {
			return nil, fmt.Errorf("%w: plan.layers: layer %d: the model has layers 0 (embeddings) to %d", ErrConfig, id, n)
		}
		if len(out) > 0 && id <= out[len(out)-1] {
			return nil, fmt.Errorf("%w: plan.layers: %v is not ascending: write each layer once, in ascending order", ErrConfig, l.IDs)
		}
		out = append(out, id)
	}
	return out, nil
}

// Default returns the configuration that an empty file stands for.
func Default() Config {
	return Config{
		Work:    "./work",
		Merge:   Merge{Dedup: "content", MaxRejects: human.Share{Relative: true, Fraction: 0.01}, MinLossTokens: 1},
		Shuffle: Shuffle{Seed: 42, Algorithm: "numpy"},
		Plan: Plan{
			Layers: Layers{Auto: true}, Overlong: "truncate", DType: "bf16", Rows: "all",
			Reserve: human.Share{Relative: true, Fraction: 0.05}, Proof: 200,
		},
		GC: GC{Keep: 1, MinAge: 24 * time.Hour},
		Extract: Extract{
			Backend: "native", Memory: 4 << 30, Codec: "lz4-planes", EngineDType: "bf16",
			MaxQuarantined: human.Share{Relative: true, Fraction: 0.01},
			MinTop1:        0.10, Patience: 10 * time.Minute, Grace: 30 * time.Second,
			Compute: "fp32", Workers: 1,
		},
	}
}

// maxFile is far above the size of any configuration.
const maxFile = 1 << 20

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) // a pipe will do too
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s: has more than %d KiB, which no configuration has", path, maxFile>>10)
	}
	return b, err
}

// Load reads path and lays overrides ("plan.max_tokens" -> "8192") over it.
func Load(path string, overrides []Override) (Config, error) {
	c := Default()
	b, err := readFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("%w: no configuration at %q", ErrConfig, path)
	}
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	doc, err := parse(b)
	if err != nil {
		return c, fmt.Errorf("%w: %s: %s", ErrConfig, path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	d := decoder{file: path}
	if len(doc.Content) > 0 {
		d.decode(doc.Content[0], &c, "")
		c.PlanText = sectionText(doc.Content[0], "plan")
	}
	for _, o := range overrides {
		d.override(&c, o)
	}
	if len(d.errs) > 0 {
		return c, fmt.Errorf("%w: %w", ErrConfig, errors.Join(d.errs...))
	}
	c.File = path
	return c, c.finish()
}

// parse reads the one document of a file; an empty file has none.
func parse(b []byte) (doc yaml.Node, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return doc, err
	}
	var second yaml.Node
	switch err := dec.Decode(&second); {
	case errors.Is(err, io.EOF):
		return doc, nil
	case err != nil:
		return doc, err
	}
	return doc, fmt.Errorf("line %d: a second document begins: put everything into one", second.Line)
}

// finish makes paths absolute, relative to the file, and checks values.
func (c *Config) finish() error {
	abs, err := filepath.Abs(c.File)
	if err != nil {
		return err
	}
	base := filepath.Dir(abs)
	rel := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(base, *p)
		}
	}
	rel(&c.Work)
	rel(&c.Model)
	rel(&c.Extract.APIKeyFile)
	rel(&c.Extract.SharedDir)
	for i := range c.Datasets {
		for j := range c.Datasets[i].Path {
			rel(&c.Datasets[i].Path[j])
		}
	}
	for i := range c.GC.Adopt {
		rel(&c.GC.Adopt[i].Path)
	}
	return c.validate()
}

// sectionText is a section as far as it means something: comments and layout
// are no change of it.
func sectionText(root *yaml.Node, key string) string {
	if root.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == key {
			b, err := yaml.Marshal(bare(root.Content[i+1]))
			if err != nil {
				return ""
			}
			return string(b)
		}
	}
	return ""
}

// bare copies a node without comments and layout.
func bare(n *yaml.Node) *yaml.Node {
	c := &yaml.Node{Kind: n.Kind, Tag: n.Tag, Value: n.Value, Alias: n.Alias, Anchor: n.Anchor}
	for _, x := range n.Content {
		c.Content = append(c.Content, bare(x))
	}
	return c
}
