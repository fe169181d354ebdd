package plan

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// What is done with a sample longer than the cap.
const (
	Truncate = "truncate" // keep its first max_tokens tokens
	Skip     = "skip"     // leave it out, counted
	Split    = "split"    // make samples of its consecutive windows of max_tokens tokens
)

// Options configures a plan. Rate, Ratio, Reserve, Memory and Beside do not
// change which states are planned and do not count in its fingerprint.
type Options struct {
	Model     string       // fingerprint
	Meta      blob.Meta    // layers, hidden, dtype, codec, last_prenorm, engine …: Generation, Blob and Datasets are filled in here
	Identity  []store.Part // what an older generation must agree on to be reused
	MaxTokens int64        // 0: no cap
	Overlong  string       // truncate, skip or split; "": truncate
	Drop      []string     // datasets left out
	Rows      string       // row selection, as blob.Meta.Rows; "": all
	// MaxDatasetTokens bounds the training tokens taken of each dataset: its
	// first ones in the seeded order. 0: no bound.
	MaxDatasetTokens int64
	// LengthFrom is the most tokens of a sample whose states serve its prefixes,
	// too: those of a longer one depend on its length. 0: all do.
	LengthFrom int64 `json:",omitempty"`
	// Limit plans only the first so many positions that are kept, for a proof.
	// 0: all.
	Limit int64
	// Reserve is the share of the volume, or the bytes, that stay free.
	Reserve  human.Share `json:"-"`
	BlobSize int64       // raw bytes; 0: chosen
	Memory   int64       // that extraction may take, for choosing a blob size; 0: unknown
	Beside   int64       // bytes that sealing writes beside blobs and index: the model's head
	Rate     float64     // tokens a second, 0: from a probe or a sealed generation, if any
	Ratio    float64     // encoded/raw, 0: likewise
	GCNames  []string    // generations a recorded decision deletes first
}

// serves says whether states of so many tokens are, or begin with, those of the
// same sample cut to need tokens.
func (o Options) serves(rows, need uint32) bool {
	return rows == need || rows > need && (o.LengthFrom == 0 || int64(rows) <= o.LengthFrom)
}

// withDefaults fills in what was left empty and refuses what makes no sense.
func (o Options) withDefaults() (Options, error) {
	o.Overlong = cmp.Or(o.Overlong, Truncate)
	o.Rows = cmp.Or(o.Rows, blob.RowsAll)
	switch {
	case o.Overlong != Truncate && o.Overlong != Skip && o.Overlong != Split:
		return o, fmt.Errorf("overlong %q: want truncate, skip or split", o.Overlong)
	case o.MaxTokens < 0 || o.MaxTokens > 1<<31:
		return o, fmt.Errorf("max_tokens %d: want 0 (no cap) to %d", o.MaxTokens, 1<<31)
	case o.BlobSize < 0 || o.MaxDatasetTokens < 0 || o.Limit < 0:
		return o, errors.New("blob_size, limit and max_tokens_per_dataset must not be negative")
	case blob.DTypeSize(o.Meta.DType) == 0:
		return o, fmt.Errorf("dtype %q: want bf16, fp16, fp32 or fp8", o.Meta.DType)
	case o.Meta.Hidden <= 0 || len(o.Meta.Layers) == 0:
		return o, fmt.Errorf("a plan needs the hidden size and at least one layer (got %d and %v)", o.Meta.Hidden, o.Meta.Layers)
	}
	if _, _, err := blob.SelectedRows(o.Rows, nil); err != nil {
		return o, err
	}
	if o.Meta.DType != "fp8" {
		o.Meta.Source = ""
	} else if o.Meta.Source = cmp.Or(o.Meta.Source, "bf16"); o.Meta.Source == "fp8" || blob.DTypeSize(o.Meta.Source) == 0 {
		return o, fmt.Errorf("fp8 from %q: want bf16, fp16 or fp32", o.Meta.Source)
	}
	o.Drop = slices.Clone(o.Drop)
	slices.Sort(o.Drop)
	o.Drop = slices.Compact(o.Drop)
	return o, nil
}

// Fingerprint returns the parts a plan depends on. Rate, ratio, reserve and
// memory do not count: they change what is foretold, and at most how what is
// planned is cut into blobs.
func Fingerprint(ctx context.Context, ws *store.Workspace, o Options) ([]store.Part, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	var parts []store.Part
	err = ws.View(func(r store.Reader) error {
		order, err := orderPart(r)
		if err != nil {
			return err
		}
		parts = fingerprint(o, order)
		return nil
	})
	return parts, err
}

// orderPart stands for the order and, through the shuffle's fingerprint, for
// the rows that it permutes.
func orderPart(r store.Reader) (string, error) {
	row, ok, err := r.Order()
	if err != nil {
		return "", err
	}
	if !ok {
		return "", errNoOrder
	}
	phase, _, err := r.Phase(store.PhaseShuffle)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	enc := json.NewEncoder(h)
	if err := errors.Join(enc.Encode(row.Hash), enc.Encode(phase.Fingerprint)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

var errNoOrder = errors.New("no shuffled order yet: run the shuffle first")

func fingerprint(o Options, order string) []store.Part {
	auto := func(n int64, zero string) string {
		if n == 0 {
			return zero
		}
		return strconv.FormatInt(n, 10)
	}
	parts := []store.Part{
		{Key: "order", Value: order},
		{Key: "model", Value: o.Model},
		{Key: "layers", Value: joinInts(o.Meta.Layers)},
		{Key: "hidden_size", Value: strconv.Itoa(o.Meta.Hidden)},
		{Key: "dtype", Value: o.Meta.DType},
		{Key: "codec", Value: o.Meta.Codec},
		{Key: "last_prenorm", Value: strconv.FormatBool(o.Meta.LastPreNorm)},
		{Key: "max_tokens", Value: auto(o.MaxTokens, "none")},
		{Key: "overlong", Value: o.Overlong},
		{Key: "rows", Value: o.Rows},
		{Key: "drop", Value: strings.Join(o.Drop, "+")},
		{Key: "max_tokens_per_dataset", Value: auto(o.MaxDatasetTokens, "none")},
		{Key: "limit", Value: auto(o.Limit, "none")},
		{Key: "blob_size", Value: auto(o.BlobSize, "auto")},
		{Key: "gc", Value: strings.Join(o.GCNames, "+")},
		{Key: "plan_format", Value: "1"},
	}
	if o.Meta.Source != "" {
		parts = append(parts, store.Part{Key: "source_dtype", Value: o.Meta.Source})
	}
	for _, p := range o.Identity {
		if !slices.ContainsFunc(parts, func(q store.Part) bool { return q.Key == p.Key }) {
			parts = append(parts, p)
		}
	}
	return parts
}

func joinInts(v []int) string {
	s := make([]string, len(v))
	for i, n := range v {
		s[i] = strconv.Itoa(n)
	}
	return strings.Join(s, ",")
}
