package store

import (
	"fmt"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Tx changes the ledger; its reads see its own changes. Everything put in one
// Update becomes durable in one step: one checkpoints.jsonl line (fsync), then
// one bbolt transaction. Not safe for concurrent use, nor after the Update.
type Tx struct {
	Reader
	o *overlay
}

func (tx *Tx) put(bucket, key string, v any) error {
	b, err := msgpack.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s/%s: %w", bucket, key, err)
	}
	return tx.o.put(op{bucket: bucket, key: key, value: b})
}

func (tx *Tx) del(bucket, key string) error {
	return tx.o.put(op{bucket: bucket, key: key, del: true})
}

// PutPhase sets the row of the phase r.Name.
func (tx *Tx) PutPhase(r PhaseRow) error { return tx.put(bucketPhases, r.Name, r) }

// PutDataset sets the row of the dataset r.Name.
func (tx *Tx) PutDataset(r DatasetRow) error { return tx.put(bucketDatasets, r.Name, r) }

// DeleteDataset removes the row of a dataset, if there is one.
func (tx *Tx) DeleteDataset(name string) error { return tx.del(bucketDatasets, name) }

// PutOrder sets the row of the order r.ID, which becomes the one in force.
func (tx *Tx) PutOrder(r OrderRow) error {
	if err := tx.put(bucketOrders, idKey(r.ID), r); err != nil {
		return err
	}
	return tx.put(bucketCurrent, keyOrder, r.ID)
}

// PutPlan sets the row of the plan r.ID, which becomes the one in force.
func (tx *Tx) PutPlan(r PlanRow) error {
	if err := tx.put(bucketPlans, idKey(r.ID), r); err != nil {
		return err
	}
	return tx.put(bucketCurrent, keyPlan, r.ID)
}

// PutAcceptance records a decision in the place of the last one.
func (tx *Tx) PutAcceptance(a Acceptance) error { return tx.put(bucketCurrent, keyAcceptance, a) }

// ClearAcceptance removes the decision, if there is one.
func (tx *Tx) ClearAcceptance() error { return tx.del(bucketCurrent, keyAcceptance) }

// PutGeneration sets the row of the generation r.ID.
func (tx *Tx) PutGeneration(r GenerationRow) error { return tx.put(bucketGens, idKey(r.ID), r) }

// PutBlob sets the row of blob r.No of generation r.Gen.
func (tx *Tx) PutBlob(r BlobRow) error { return tx.put(bucketBlobs, idKey(r.Gen, r.No), r) }

// PutQuarantine sets the row of an entry of a blob.
func (tx *Tx) PutQuarantine(r QuarantineRow) error {
	return tx.put(bucketQuarantine, idKey(r.Gen, r.Blob, r.Entry), r)
}

// PutValue sets a small private record; nil deletes it.
func (tx *Tx) PutValue(key string, v []byte) error {
	if v == nil {
		return tx.del(bucketValues, key)
	}
	return tx.o.put(op{bucket: bucketValues, key: key, value: slices.Clone(v)})
}

// Next returns the next number of a sequence ("samples", "order", "plan",
// "generation", "dataset"), from 1. Numbers only grow and are never given
// twice, provided that the Update succeeds.
func (tx *Tx) Next(seq string) (uint32, error) {
	n, _, err := row[uint32](tx.o, bucketSeqs, seq)
	if err != nil {
		return 0, err
	}
	if n == math.MaxUint32 {
		return 0, fmt.Errorf("sequence %q is used up", seq)
	}
	return n + 1, tx.put(bucketSeqs, seq, n+1)
}

// DeleteBlobs removes the rows of the blobs and of the quarantined entries of
// a generation whose files are gone, so that the ledger does not keep growing
// from night to night.
func (tx *Tx) DeleteBlobs(gen uint32) error {
	for _, bucket := range []string{bucketBlobs, bucketQuarantine} {
		var keys []string
		err := tx.o.scan(bucket, idKey(gen)+"/", func(k string, _ []byte) error {
			keys = append(keys, k)
			return nil
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			if err := tx.del(bucket, k); err != nil {
				return err
			}
		}
	}
	return nil
}
