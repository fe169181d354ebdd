package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"eaglebatch/extract/model/gguf"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
)

const (
	indexName  = "model.safetensors.index.json"
	singleName = "model.safetensors"
)

// weights finds tensors by their Hugging Face names, whatever the files are.
type weights interface {
	// tensor returns the named tensor; ok is false where the model has none.
	tensor(name string) (t tensor.Tensor, ok bool, err error)
	// names lists the tensors by their Hugging Face names, sorted; nil where
	// ReadSpec has looked at them.
	names() []string
	Close() error
}

func openWeights(path string) (weights, error) {
	if isGGUF(path) {
		f, err := gguf.Open(path)
		if err != nil {
			return nil, err
		}
		if err := wholeGGUF(f); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
		}
		return ggufWeights{f}, nil
	}
	return openShards(path)
}

// readIndex returns which shard holds which tensor, or nil without an index.
func readIndex(dir string) (map[string]string, error) {
	path := filepath.Join(dir, indexName)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var index struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for name, file := range index.Map {
		if file != filepath.Base(file) || file == "" || strings.HasPrefix(file, ".") {
			return nil, fmt.Errorf("%s: tensor %q lies in %q, which is no file name", path, name, file)
		}
	}
	return index.Map, nil
}

// shardNames lists the weight files, sorted, that the directory has or its
// index names.
func shardNames(dir string) ([]string, error) {
	index, err := readIndex(dir)
	if err != nil {
		return nil, err
	}
	if index != nil {
		return slices.Compact(slices.Sorted(maps.Values(index))), nil
	}
	switch _, err := os.Stat(filepath.Join(dir, singleName)); {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []string{singleName}, nil
}

func hasWeights(dir string) (bool, error) {
	names, err := shardNames(dir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		switch _, err := os.Stat(filepath.Join(dir, name)); {
		case errors.Is(err, os.ErrNotExist):
			return false, nil
		case err != nil:
			return false, err
		}
	}
	return len(names) > 0, nil
}

// shards maps the safetensors files of a directory as they are asked for: the
// head of a model in a hundred shards lies in one or two of them.
type shards struct {
	dir   string
	index map[string]string // nil: everything is in the single file

	mu   sync.Mutex
	open map[string]*safetensors.File
}

func openShards(dir string) (*shards, error) {
	names, err := shardNames(dir)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: %w: neither %s nor %s (a pytorch_model.bin is not read: save it as safetensors)", dir, ErrNoWeights, singleName, indexName)
	}
	index, err := readIndex(dir)
	if err != nil {
		return nil, err
	}
	if index != nil {
		if _, err := os.Stat(filepath.Join(dir, singleName)); err == nil && !slices.Contains(names, singleName) {
			return nil, fmt.Errorf("%s has %s, and %s, which names other files: engines differ in what they take: remove the one that is not the model", dir, singleName, indexName)
		}
	}
	return &shards{dir: dir, index: index, open: map[string]*safetensors.File{}}, nil
}

func (s *shards) tensor(name string) (tensor.Tensor, bool, error) {
	file := singleName
	if s.index != nil {
		var ok bool
		if file, ok = s.index[name]; !ok {
			return tensor.Tensor{}, false, nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.open[file]
	if !ok {
		var err error
		f, err = safetensors.Open(filepath.Join(s.dir, file))
		if errors.Is(err, os.ErrNotExist) {
			return tensor.Tensor{}, false, fmt.Errorf("%w: %w", ErrNoWeights, err)
		}
		if err != nil {
			return tensor.Tensor{}, false, err
		}
		s.open[file] = f
		if err := s.checkShard(file, f); err != nil {
			return tensor.Tensor{}, false, err
		}
	}
	t, ok := f.Tensor(name)
	if !ok && s.index != nil {
		return t, false, fmt.Errorf("%s: has no tensor %q, though the index says so", filepath.Join(s.dir, file), name)
	}
	return t, ok, nil
}

// checkShard refuses a tensor that lies in two shards: engines differ in which
// they take.
func (s *shards) checkShard(file string, f *safetensors.File) error {
	for _, t := range f.Tensors {
		if other, ok := s.index[t.Name]; ok && other != file {
			return fmt.Errorf("%s: tensor %q lies here, and the index says in %s", filepath.Join(s.dir, file), t.Name, other)
		}
	}
	return nil
}

func (s *shards) names() []string {
	if s.index != nil {
		return sortedKeys(s.index)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, f := range s.open {
		for _, t := range f.Tensors {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out
}

func (s *shards) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for _, f := range s.open {
		err = errors.Join(err, f.Close())
	}
	s.open = nil
	return err
}

// ggufWeights finds tensors of a GGUF file by the names they have in the HF
// directory it was made from.
type ggufWeights struct{ *gguf.File }

func (w ggufWeights) tensor(name string) (tensor.Tensor, bool, error) {
	t, ok := w.Tensor(ggufName(name))
	return t, ok, nil
}

func (w ggufWeights) names() []string { return nil }

func ggufName(name string) string {
	switch name {
	case "model.embed_tokens.weight":
		return "token_embd.weight"
	case "model.norm.weight":
		return "output_norm.weight"
	case "lm_head.weight":
		return "output.weight"
	}
	layer, rest, _ := strings.Cut(strings.TrimPrefix(name, "model.layers."), ".")
	part, kind := rest, ""
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		part, kind = rest[:i], rest[i:]
	}
	return "blk." + layer + "." + ggufPart(part) + kind
}

func ggufPart(part string) string {
	switch part {
	case "input_layernorm":
		return "attn_norm"
	case "post_attention_layernorm":
		return "ffn_norm"
	case "self_attn.q_proj":
		return "attn_q"
	case "self_attn.k_proj":
		return "attn_k"
	case "self_attn.v_proj":
		return "attn_v"
	case "self_attn.o_proj":
		return "attn_output"
	case "self_attn.q_norm":
		return "attn_q_norm"
	case "self_attn.k_norm":
		return "attn_k_norm"
	case "mlp.gate_proj":
		return "ffn_gate"
	case "mlp.up_proj":
		return "ffn_up"
	case "mlp.down_proj":
		return "ffn_down"
	}
	return part
}
