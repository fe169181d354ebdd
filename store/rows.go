package store

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
)

// Reader reads ledger rows. Tx and Snapshot are Readers. The bool says whether
// there is such a row.
type Reader interface {
	Phase(name string) (PhaseRow, bool, error)
	Datasets() ([]DatasetRow, error) // by Order
	Order() (OrderRow, bool, error)  // in force
	Plan() (PlanRow, bool, error)    // in force
	PlanByID(id uint32) (PlanRow, bool, error)
	Acceptance() (Acceptance, bool, error)
	Generation(id uint32) (GenerationRow, bool, error)
	Generations() ([]GenerationRow, error) // by ID
	Blobs(gen uint32) ([]BlobRow, error)   // by No
	Quarantine(gen uint32) ([]QuarantineRow, error)
	Value(key string) ([]byte, bool, error) // small private records: "probe/…", "canary/…", "rejects-accepted/…"
}

// rows is the Reader over any table.
type rows struct{ t table }

var _ Reader = rows{}

// row reads and decodes one value.
func row[T any](t table, bucket, key string) (v T, ok bool, err error) {
	b, ok, err := t.get(bucket, key)
	if err != nil || !ok {
		return v, false, err
	}
	return v, true, decode(t, bucket, key, b, &v)
}

// list decodes every value whose key begins with prefix, in order of key.
func list[T any](t table, bucket, prefix string) (all []T, err error) {
	err = t.scan(bucket, prefix, func(k string, b []byte) error {
		var v T
		if err := decode(t, bucket, k, b, &v); err != nil {
			return err
		}
		all = append(all, v)
		return nil
	})
	return all, err
}

func decode(t table, bucket, key string, b []byte, v any) error {
	if err := msgpack.Unmarshal(b, v); err != nil {
		return &CorruptError{Path: t.place(), Key: bucket + "/" + key, Offset: -1,
			Err: fmt.Errorf("%w: %w", errBadValue, err)}
	}
	return nil
}

// current reads the row of bucket that the key in "current" points to.
func current[T any](t table, key, bucket string) (v T, ok bool, err error) {
	id, ok, err := row[uint32](t, bucketCurrent, key)
	if err != nil || !ok {
		return v, false, err
	}
	v, ok, err = row[T](t, bucket, idKey(id))
	if err == nil && !ok {
		err = &CorruptError{Path: t.place(), Key: bucket + "/" + idKey(id), Offset: -1,
			Err: fmt.Errorf("the %s in force is missing", key)}
	}
	return v, ok, err
}

func (r rows) Phase(name string) (PhaseRow, bool, error) {
	return row[PhaseRow](r.t, bucketPhases, name)
}

func (r rows) Datasets() ([]DatasetRow, error) {
	all, err := list[DatasetRow](r.t, bucketDatasets, "")
	slices.SortStableFunc(all, func(a, b DatasetRow) int { return cmp.Compare(a.Order, b.Order) })
	return all, err
}

func (r rows) Order() (OrderRow, bool, error) {
	return current[OrderRow](r.t, keyOrder, bucketOrders)
}

func (r rows) Plan() (PlanRow, bool, error) {
	return current[PlanRow](r.t, keyPlan, bucketPlans)
}

func (r rows) PlanByID(id uint32) (PlanRow, bool, error) {
	return row[PlanRow](r.t, bucketPlans, idKey(id))
}

func (r rows) Acceptance() (Acceptance, bool, error) {
	return row[Acceptance](r.t, bucketCurrent, keyAcceptance)
}

func (r rows) Generation(id uint32) (GenerationRow, bool, error) {
	return row[GenerationRow](r.t, bucketGens, idKey(id))
}

func (r rows) Generations() ([]GenerationRow, error) {
	return list[GenerationRow](r.t, bucketGens, "")
}

func (r rows) Blobs(gen uint32) ([]BlobRow, error) {
	return list[BlobRow](r.t, bucketBlobs, idKey(gen)+"/")
}

func (r rows) Quarantine(gen uint32) ([]QuarantineRow, error) {
	return list[QuarantineRow](r.t, bucketQuarantine, idKey(gen)+"/")
}

func (r rows) Value(key string) ([]byte, bool, error) { return r.t.get(bucketValues, key) }
