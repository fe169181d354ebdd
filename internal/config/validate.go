package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"eaglebatch/internal/human"
)

// nameRE keeps names usable as file names and in key=value lists.
var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (c *Config) validate() error {
	checks := []func() error{c.datasets, c.enums, c.numbers, c.adopts}
	for _, f := range checks {
		if err := f(); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrConfig, c.File, err)
		}
	}
	return nil
}

func (c *Config) datasets() error {
	seen := map[string]bool{}
	for i, d := range c.Datasets {
		switch {
		case !nameRE.MatchString(d.Name):
			return fmt.Errorf("datasets[%d].name: %q: want letters, digits, '.', '_' and '-', starting with a letter or digit", i, d.Name)
		case seen[d.Name]:
			return fmt.Errorf("datasets[%d].name: %q is given twice", i, d.Name)
		case len(d.Path) == 0 || slices.Contains(d.Path, ""):
			return fmt.Errorf("datasets[%d] (%s): no path", i, d.Name)
		case d.Weight < 0 || d.Weight > 1e6:
			return fmt.Errorf("datasets[%d] (%s): weight %v is not between 0 and a million", i, d.Name, d.Weight)
		case d.Eval < 0:
			return fmt.Errorf("datasets[%d] (%s): eval cannot be negative", i, d.Name)
		}
		seen[d.Name] = true
	}
	for _, name := range c.Plan.Drop {
		if !seen[name] {
			return fmt.Errorf("plan.drop: there is no dataset %q%s", name, suggestion(name, c.names()))
		}
	}
	return nil
}

func (c *Config) names() []string {
	var out []string
	for _, d := range c.Datasets {
		out = append(out, d.Name)
	}
	return out
}

func suggestion(word string, known []string) string {
	if near := human.Nearest(word, known); near != "" {
		return fmt.Sprintf(": did you mean %q?", near)
	}
	return ""
}

func (c *Config) enums() error {
	for _, e := range []struct {
		key, value string
		known      []string
	}{
		{"merge.dedup", c.Merge.Dedup, []string{"content", "none"}},
		{"shuffle.algorithm", c.Shuffle.Algorithm, []string{"numpy", "feistel"}},
		{"plan.overlong", c.Plan.Overlong, []string{"truncate", "skip", "split"}},
		{"plan.rows", c.Plan.Rows, []string{"all", "last-supervised", "cut-tail", "last-supervised+cut-tail"}},
		{"plan.dtype", c.Plan.DType, []string{"bf16", "fp16", "fp32", "fp8"}},
		{"extract.engine_dtype", c.Extract.EngineDType, []string{"bf16", "fp16", "fp32"}},
		{"extract.codec", c.Extract.Codec, []string{"raw", "lz4", "lz4-planes", "dense"}},
		{"extract.backend", c.Extract.Backend, []string{"native", "vllm", "sglang", "worker", "synthetic"}},
		{"extract.compute", c.Extract.Compute, []string{"fp32", "bf16"}},
	} {
		if !slices.Contains(e.known, e.value) {
			return fmt.Errorf("%s: %q: want one of %s", e.key, e.value, strings.Join(e.known, ", "))
		}
	}
	return nil
}

func (c *Config) numbers() error {
	for _, n := range []struct {
		key   string
		value float64
	}{
		{"plan.tokens_per_second", c.Plan.TokensPerSecond}, {"plan.gpus", float64(c.Plan.GPUs)}, {"plan.gpu_hour_price", c.Plan.GPUHourPrice},
		{"plan.proof", float64(c.Plan.Proof)}, {"extract.threads", float64(c.Extract.Threads)}, {"extract.workers", float64(c.Extract.Workers)},
		{"extract.concurrency", float64(c.Extract.Concurrency)}, {"extract.rate", c.Extract.Rate},
	} {
		if n.value < 0 {
			return fmt.Errorf("%s: %v is negative", n.key, n.value)
		}
	}
	switch {
	case c.Work == "":
		return errors.New("work: no directory")
	case c.Plan.MaxTokens < 0:
		return fmt.Errorf("plan.max_tokens: %d is negative; 0 means no cap", c.Plan.MaxTokens)
	case c.Plan.MaxDatasetTokens < 0:
		return fmt.Errorf("plan.max_tokens_per_dataset: %d is negative; 0 means all", c.Plan.MaxDatasetTokens)
	case c.Merge.MinLossTokens < 0:
		return fmt.Errorf("merge.min_loss_tokens: %d is negative", c.Merge.MinLossTokens)
	case c.Merge.VocabSize < 0:
		return fmt.Errorf("merge.vocab_size: %d is negative", c.Merge.VocabSize)
	case c.GC.Keep < 0:
		return fmt.Errorf("gc.keep: %d is negative", c.GC.Keep)
	case c.Extract.MinTop1 < 0 || c.Extract.MinTop1 > 1:
		return fmt.Errorf("extract.min_top1: %v is not between 0 and 1", c.Extract.MinTop1)
	case c.Extract.Memory < 64<<20:
		return fmt.Errorf("extract.memory: %s is too little: 64 MiB is the least", c.Extract.Memory)
	case c.Plan.Overlong == "split" && c.Plan.MaxTokens == 0:
		return fmt.Errorf("plan.overlong: split needs plan.max_tokens")
	}
	return nil
}

func (c *Config) adopts() error {
	for i, a := range c.GC.Adopt {
		if !nameRE.MatchString(a.Name) {
			return fmt.Errorf("gc.adopt[%d].name: %q: want letters, digits, '.', '_' and '-'", i, a.Name)
		}
		if a.Path == "" {
			return fmt.Errorf("gc.adopt[%d] (%s): no path", i, a.Name)
		}
	}
	return nil
}
