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

// DamagedWhole reports whether every blob of a generation is recorded as damaged
// as a whole. One that has no blobs is not.
func DamagedWhole(r Reader, gen uint32) (bool, error) {
	blobs, err := r.Blobs(gen)
	if err != nil || len(blobs) == 0 {
		return false, err
	}
	all, err := Damaged(r, gen)
	if err != nil {
		return false, err
	}
	whole := map[uint32]bool{}
	for _, d := range all {
		whole[d.Blob] = whole[d.Blob] || d.Whole
	}
	return !slices.ContainsFunc(blobs, func(b BlobRow) bool { return !whole[b.No] }), nil
}

// ForgetDamaged removes from the recorded damage of a generation what is sound
// again, or all of it where sound is nil.
func (tx *Tx) ForgetDamaged(gen uint32, sound func(DamagedEntry) bool) error {
	all, err := Damaged(tx, gen)
	if err != nil || len(all) == 0 {
		return err
	}
	left := all
	if sound != nil {
		left = slices.DeleteFunc(slices.Clone(all), sound)
	}
	switch {
	case sound == nil || len(left) == 0:
		return tx.PutValue(damageKey(gen), nil)
	case len(left) == len(all):
		return nil
	}
	b, err := msgpack.Marshal(left)
	if err != nil {
		return err
	}
	return tx.PutValue(damageKey(gen), b)
}
