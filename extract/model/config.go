package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"eaglebatch/extract/model/gguf"
	"eaglebatch/extract/model/mapped"
)

// ErrNoWeights marks a model whose weight files are not at hand.
var ErrNoWeights = errors.New("no weight files")

// ErrUnsupported marks an architecture, option or number format that cannot be
// computed here.
var ErrUnsupported = errors.New("not supported")

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
	// LengthFrom is the most tokens of a sample whose states do not depend on
	// its length: beyond it the rotation does (rope types dynamic and longrope),
	// and rows of a prefix are not those of the whole. 0: they never do.
	LengthFrom int
	Weights    bool   // weight files are at hand
	Tokenizer  string // fingerprint of tokenizer files, "" where there are none
}

// ReadConfig reads the sizes of a HF directory (config.json alone suffices) or a .gguf.
func ReadConfig(path string) (Config, error) {
	if isGGUF(path) {
		f, err := gguf.Open(path)
		if err != nil {
			return Config{}, err
		}
		c, err := ggufConfig(path, f)
		return c, errors.Join(err, f.Close())
	}
	j, err := readJSONConfig(path)
	if err != nil {
		return Config{}, err
	}
	c, err := j.config(path)
	if err != nil {
		return Config{}, err
	}
	if c.Weights, err = hasWeights(path); err != nil {
		return Config{}, err
	}
	c.Tokenizer, err = tokenizerFingerprint(path)
	return c, err
}

func isGGUF(path string) bool { return strings.EqualFold(filepath.Ext(path), ".gguf") }

// jsonConfig is a config.json: all of it, and the part that describes the
// language model.
type jsonConfig struct {
	path string // of the file
	top  map[string]json.RawMessage
	text map[string]json.RawMessage // top itself where nothing is nested
	// nested is the key of top that text lies under, "" for none.
	nested string
}

func readJSONConfig(dir string) (jsonConfig, error) {
	j := jsonConfig{path: filepath.Join(dir, "config.json")}
	f, err := mapped.OpenFile(j.path)
	if err != nil {
		return j, err
	}
	b, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return j, err
	}
	if err := json.Unmarshal(b, &j.top); err != nil {
		return j, fmt.Errorf("%s: %w", j.path, err)
	}
	j.text = j.top
	for _, key := range []string{"text_config", "llm_config", "language_config"} {
		raw, ok := j.top[key]
		if !ok || string(raw) == "null" {
			continue
		}
		j.text, j.nested = nil, key
		if err := json.Unmarshal(raw, &j.text); err != nil {
			return j, fmt.Errorf("%s: %s: %w", j.path, key, err)
		}
		break
	}
	return j, nil
}

// config reads the sizes, which every model has.
func (j jsonConfig) config(dir string) (Config, error) {
	c := Config{Path: dir}
	var archs []string
	if err := j.read(j.top, "architectures", &archs); err != nil {
		return c, err
	}
	if len(archs) > 0 {
		c.Arch = archs[0]
	}
	err := errors.Join(
		j.read(j.top, "model_type", &c.ModelType),
		j.read(j.text, "num_hidden_layers", &c.Layers),
		j.read(j.text, "hidden_size", &c.Hidden),
		j.read(j.text, "vocab_size", &c.Vocab),
		j.read(j.text, "max_position_embeddings", &c.MaxPos),
	)
	if err != nil {
		return c, err
	}
	if c.LengthFrom, err = j.lengthFrom(c.MaxPos); err != nil {
		return c, err
	}
	for _, s := range []struct {
		key string
		v   int
	}{{"num_hidden_layers", c.Layers}, {"hidden_size", c.Hidden}, {"vocab_size", c.Vocab}} {
		if _, given := j.text[s.key]; !given {
			return c, fmt.Errorf("%s: %s is missing: write there what the model has", j.path, j.name(s.key))
		}
		if s.v <= 0 || s.v > 1<<30 {
			return c, fmt.Errorf("%s: %s is %d, which no model has", j.path, j.name(s.key), s.v)
		}
	}
	return c, nil
}

// name says where in the file a key of the language model stands.
func (j jsonConfig) name(key string) string {
	if j.nested == "" {
		return key
	}
	return j.nested + "." + key
}

// lengthFrom is Config.LengthFrom, of any architecture. A rotation may be given
// for each type of layer.
func (j jsonConfig) lengthFrom(maxPos int) (int, error) {
	outer, least := 0, 0
	err := j.read(j.text, "original_max_position_embeddings", &outer)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		var given map[string]json.RawMessage
		err = errors.Join(err, j.read(j.text, key, &given))
		dicts := []map[string]json.RawMessage{given}
		for _, raw := range given {
			var layers map[string]json.RawMessage
			if json.Unmarshal(raw, &layers) == nil { // another value is none of these
				dicts = append(dicts, layers)
			}
		}
		for _, d := range dicts {
			var kind string
			original := outer
			err = errors.Join(err, j.read(d, "type", &kind), j.read(d, "rope_type", &kind), j.read(d, "original_max_position_embeddings", &original))
			from := 0
			switch kind {
			case "dynamic":
				from = maxPos
			case "longrope", "su":
				from = cmp.Or(original, maxPos)
			}
			if from > 0 && (least == 0 || from < least) {
				least = from
			}
		}
	}
	return least, err
}

// read decodes key into v and leaves v alone where the key is missing or null.
func (j jsonConfig) read(m map[string]json.RawMessage, key string, v any) error {
	raw, ok := m[key]
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %s: %w", j.path, key, err)
	}
	return nil
}

func ggufConfig(path string, f *gguf.File) (Config, error) {
	arch := f.KV["general.architecture"].Str
	c := Config{
		Path:      path,
		Arch:      arch,
		ModelType: arch,
		Layers:    int(f.KV[arch+".block_count"].Int),
		Hidden:    int(f.KV[arch+".embedding_length"].Int),
		Vocab:     f.KV["tokenizer.ggml.tokens"].Count,
		MaxPos:    int(f.KV[arch+".context_length"].Int),
		Weights:   len(f.Tensors) > 0,
		Tokenizer: ggufTokenizer(f),
	}
	if t, ok := f.Tensor("token_embd.weight"); ok && len(t.Shape) == 2 {
		c.Vocab = t.Shape[0]
	}
	if arch == "" || c.Layers <= 0 || c.Hidden <= 0 || c.Vocab <= 0 {
		return c, fmt.Errorf("%s: metadata lacks general.architecture, block_count, embedding_length or the vocabulary", path)
	}
	return c, nil
}
