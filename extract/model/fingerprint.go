package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"eaglebatch/extract/model/gguf"
	"eaglebatch/extract/model/mapped"
	"eaglebatch/extract/model/safetensors"
)

// Fingerprint identifies a model by config, index, shard sizes and header
// hashes: fast, for terabytes too. It is the same for a copy at another path.
// Two models whose weights differ in values alone share it.
func Fingerprint(ctx context.Context, path string) (string, error) {
	d := digest{sha256.New()}
	if isGGUF(path) {
		f, err := gguf.Open(path)
		if err != nil {
			return "", err
		}
		d.add("gguf", f.HeaderBytes())
		d.add("size", fmt.Append(nil, f.Size()))
		return d.sum(), f.Close()
	}
	config, err := os.ReadFile(filepath.Join(path, "config.json"))
	if err != nil {
		return "", err
	}
	d.add("config.json", config)
	index, err := os.ReadFile(filepath.Join(path, indexName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	d.add("index", index)
	shards, err := shardNames(path)
	if err != nil {
		return "", err
	}
	for _, name := range shards {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		header, size, err := safetensors.ReadHeader(filepath.Join(path, name))
		if errors.Is(err, os.ErrNotExist) {
			d.add("absent", []byte(name))
			continue
		}
		if err != nil {
			return "", err
		}
		d.add(name, header)
		d.add("size", fmt.Append(nil, size))
	}
	return d.sum(), nil
}

// digest hashes labelled byte strings, each with its length, so that no two
// lists of them hash alike.
type digest struct{ hash.Hash }

func (d digest) add(label string, b []byte) {
	fmt.Fprintf(d, "%s %d\n", label, len(b)) // a hash never fails to write
	d.Write(b)
}

func (d digest) sum() string { return "sha256:" + hex.EncodeToString(d.Sum(nil)) }

// tokenizerFiles lists the files that decide how text becomes ids.
func tokenizerFiles() []string {
	return []string{
		"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.model",
		"vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json",
		"chat_template.jinja", "chat_template.json",
	}
}

func tokenizerFingerprint(dir string) (string, error) {
	d := digest{sha256.New()}
	found := false
	for _, name := range tokenizerFiles() {
		f, err := mapped.OpenFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		one := sha256.New()
		_, err = io.Copy(one, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return "", fmt.Errorf("read %s: %w", f.Name(), err)
		}
		d.add(name, one.Sum(nil))
		found = true
	}
	if !found {
		return "", nil
	}
	return d.sum(), nil
}

func ggufTokenizer(f *gguf.File) string {
	d := digest{sha256.New()}
	found := false
	for _, key := range slices.Sorted(maps.Keys(f.KV)) {
		if !strings.HasPrefix(key, "tokenizer.") {
			continue
		}
		v := f.KV[key]
		d.add(key, fmt.Append([]byte(v.Str), v.Kind, v.Int, v.Float, v.Elem, v.Count))
		d.add("array", v.Raw)
		found = true
	}
	if !found {
		return ""
	}
	return d.sum()
}
