package store

import (
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// DamagedEntry is a blob entry whose stored states cannot be used any more, as
// a check found. Whole stands for every entry of the blob.
type DamagedEntry struct {
	Blob  uint32 `msgpack:"b"`
	Entry uint32 `msgpack:"e"`
	Whole bool   `msgpack:"w"`
}

func damageKey(gen uint32) string { return fmt.Sprintf("damage/%06d", gen) }

// Damaged returns the entries of a generation that are recorded as damaged.
func Damaged(r Reader, gen uint32) (out []DamagedEntry, err error) {
	b, ok, err := r.Value(damageKey(gen))
	if err != nil || !ok {
		return nil, err
	}
	if err := msgpack.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("ledger record %s: %w", damageKey(gen), err)
	}
	return out, nil
}

// PutDamaged adds to the recorded damage of a generation.
func (tx *Tx) PutDamaged(gen uint32, found []DamagedEntry) error {
	all, err := Damaged(tx, gen)
	if err != nil {
		return err
	}
	for _, d := range found {
		if !slices.Contains(all, d) {
			all = append(all, d)
		}
	}
	b, err := msgpack.Marshal(all)
	if err != nil {
		return err
	}
	return tx.PutValue(damageKey(gen), b)
}
