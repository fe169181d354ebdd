package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The buckets of the ledger.
const (
	bucketMeta       = "meta"
	bucketSeqs       = "seqs"
	bucketCurrent    = "current" // "order", "plan", "acceptance": what is in force
	bucketPhases     = "phases"
	bucketDatasets   = "datasets"
	bucketOrders     = "orders"
	bucketPlans      = "plans"
	bucketGens       = "generations"
	bucketBlobs      = "blobs"
	bucketQuarantine = "quarantine"
	bucketValues     = "values" // raw bytes
)

const (
	keyRoot       = "root_id"
	keyOrder      = "order"
	keyPlan       = "plan"
	keyAcceptance = "acceptance"
)

// idKey makes keys of numbers sort as the numbers do.
func idKey(ids ...uint32) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte('/')
		}
		fmt.Fprintf(&b, "%010d", id)
	}
	return b.String()
}

// table reads (bucket, key) -> value. Values belong to the caller.
type table interface {
	get(bucket, key string) ([]byte, bool, error)
	scan(bucket, prefix string, fn func(key string, v []byte) error) error // in order of key
	place() string                                                         // the file, for errors
}

// overlay is a table with changes laid over it that are not committed yet.
type overlay struct {
	table
	ops []op
	at  map[string]map[string]int // index into ops
}

func newOverlay(t table) *overlay {
	return &overlay{table: t, at: map[string]map[string]int{}}
}

func (o *overlay) get(bucket, key string) ([]byte, bool, error) {
	if i, ok := o.at[bucket][key]; ok {
		return slices.Clone(o.ops[i].value), !o.ops[i].del, nil
	}
	return o.table.get(bucket, key)
}

func (o *overlay) scan(bucket, prefix string, fn func(string, []byte) error) error {
	all := map[string][]byte{}
	err := o.table.scan(bucket, prefix, func(k string, v []byte) error {
		all[k] = v
		return nil
	})
	if err != nil {
		return err
	}
	s := state{bucket: all}
	for k, i := range o.at[bucket] {
		if strings.HasPrefix(k, prefix) {
			s.apply(o.ops[i : i+1])
		}
	}
	return s.scan(bucket, prefix, fn)
}

// maxKey is what bbolt takes, in bytes.
const maxKey = 32768

// put records an op; the last one of a key counts.
func (o *overlay) put(p op) error {
	if p.key == "" || len(p.key) > maxKey || !utf8.ValidString(p.key) {
		return fmt.Errorf("ledger key %q in %s: want 1 to %d bytes of UTF-8", p.key, p.bucket, maxKey)
	}
	b := o.at[p.bucket]
	if b == nil {
		b = map[string]int{}
		o.at[p.bucket] = b
	}
	if i, ok := b[p.key]; ok {
		o.ops[i] = p
		return nil
	}
	if p.del {
		_, ok, err := o.table.get(p.bucket, p.key)
		if err != nil || !ok {
			return err // nothing to delete: no change
		}
	}
	b[p.key] = len(o.ops)
	o.ops = append(o.ops, p)
	return nil
}

var errBadValue = errors.New("value does not decode")
