package plan

import (
	"eaglebatch/store/blob"
	"eaglebatch/store/samples"
)

// shape is what decides how many bytes a sample's states take.
type shape struct {
	layers   int
	rowBytes int64 // of one layer
	rows     string
}

func shapeOf(m blob.Meta, rows string) shape {
	return shape{layers: len(m.Layers), rowBytes: int64(m.RowBytes()), rows: rows}
}

// perToken is the raw size of a token all of whose layers are stored.
func (s shape) perToken() int64 { return int64(s.layers) * s.rowBytes }

// bytes returns the raw size of the first kept rows of a sample. It is exact
// where all rows are stored. With a row selection it is exact for samples with
// one supervised run that the cap does not cut, and close for others: the
// row index does not hold the masks.
func (s shape) bytes(r samples.Row, kept uint32) int64 {
	last, others := s.storedRows(r, kept)
	return s.rowBytes * (last + int64(s.layers-1)*others)
}

// storedRows returns how many rows of the last layer and of each other layer
// are stored.
func (s shape) storedRows(r samples.Row, kept uint32) (last, others int64) {
	n := int64(kept)
	last, others = n, n
	if r.Supervised == 0 {
		if s.rows == blob.RowsLastSupervised || s.rows == blob.RowsBoth {
			last = 0
		}
		return last, others
	}
	if s.rows == blob.RowsCutTail || s.rows == blob.RowsBoth {
		others = min(n, int64(r.Last)+1)
		last = others
	}
	if s.rows == blob.RowsLastSupervised || s.rows == blob.RowsBoth {
		from, to := int64(r.First), min(int64(r.Last), n)
		sup := min(int64(r.Supervised), max(to-from, 0))
		// the rows before the first and after the last supervised one
		if from > 0 {
			sup++
		}
		if to < n {
			sup++
		}
		last = min(last, sup)
	}
	return last, others
}

// selects says whether some rows are left out, so that an entry serves only
// positions with its own mask.
func selects(rows string) bool { return rows != "" && rows != blob.RowsAll }
