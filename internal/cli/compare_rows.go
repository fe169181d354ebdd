package cli

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"eaglebatch/store/states"
)

// pair compares one sample.
func (k *comparer) pair(p pair, doc *compareDoc) error {
	sa, err := k.a.At(p.a)
	if errors.Is(err, states.ErrAbsent) {
		doc.absent(&k.mu) // of a generation being built: not there yet
		return nil
	}
	if err != nil {
		return fmt.Errorf("generation %d: %w", k.a.row.ID, err)
	}
	defer sa.Close()
	sb, err := k.b.At(p.b)
	if errors.Is(err, states.ErrAbsent) {
		doc.absent(&k.mu)
		return nil
	}
	if err != nil {
		return fmt.Errorf("generation %d: %w", k.b.row.ID, err)
	}
	defer sb.Close()
	n := min(len(sa.IDs), len(sb.IDs))
	k.mu.Lock()
	doc.Matched++
	if !slices.Equal(sa.IDs[:n], sb.IDs[:n]) {
		doc.IDsDiffer++
	}
	if !bytes.Equal(sa.Mask[:n], sb.Mask[:n]) {
		doc.MaskDiffer++
	}
	k.mu.Unlock()
	for i, c := range k.common {
		if err := k.layer(p, [2]*states.Sample{sa, sb}, c, k.tally[i]); err != nil {
			return err
		}
	}
	return nil
}

// strip is a run of rows that both have: rows a… of the one's stored rows and
// b… of the other's, which are tokens token….
type strip struct {
	a, b  int
	token uint32
	n     int
}

// strips pairs the stored rows of a layer, of which there are at most most.
func strips(s [2]*states.Sample, layer [2]int, most int) ([]strip, error) {
	var rows [2][]uint32
	n := min(len(s[0].IDs), len(s[1].IDs))
	for i := range s {
		r, err := s[i].Reader.LayerRows(int(s[i].Position.Entry), layer[i])
		if err != nil {
			return nil, err
		}
		if r == nil {
			r = make([]uint32, n)
			for t := range r {
				r[t] = uint32(t)
			}
		}
		rows[i] = r
	}
	var out []strip
	for a, b := 0, 0; a < len(rows[0]) && b < len(rows[1]); {
		switch ta, tb := rows[0][a], rows[1][b]; {
		case int(ta) >= n || int(tb) >= n:
			return out, nil
		case ta < tb:
			a++
		case tb < ta:
			b++
		default:
			if l := len(out) - 1; l >= 0 && out[l].n < most && out[l].a+out[l].n == a && out[l].b+out[l].n == b && out[l].token+uint32(out[l].n) == ta {
				out[l].n++
			} else {
				out = append(out, strip{a, b, ta, 1})
			}
			a, b = a+1, b+1
		}
	}
	return out, nil
}

// layer compares one layer of a sample in pieces of bounded size.
func (k *comparer) layer(p pair, s [2]*states.Sample, layer [2]int, total *layerTally) error {
	ma, mb := s[0].Reader.Meta(), s[1].Reader.Meta()
	most := max(1, (4<<20)/max(ma.RowBytes(), mb.RowBytes()))
	list, err := strips(s, layer, most)
	if err != nil {
		return err
	}
	own := newLayerTally()
	most = min(most, max(len(s[0].IDs), 1))
	ba, bb := make([]byte, most*ma.RowBytes()), make([]byte, most*mb.RowBytes())
	for _, st := range list {
		da, db := ba[:st.n*ma.RowBytes()], bb[:st.n*mb.RowBytes()]
		if err := s[0].Reader.Layer(da, int(s[0].Position.Entry), layer[0], st.a, st.n); err != nil {
			return err
		}
		if err := s[1].Reader.Layer(db, int(s[1].Position.Entry), layer[1], st.b, st.n); err != nil {
			return err
		}
		va, err := floats(da, ma.DType, ma.Hidden)
		if err != nil {
			return err
		}
		vb, err := floats(db, mb.DType, mb.Hidden)
		if err != nil {
			return err
		}
		for r := range st.n {
			at := worstRow{PositionA: p.a, PositionB: p.b, Dataset: k.a.Index().Meta().Datasets[s[0].Position.Dataset], Sample: s[0].Position.Sample, Row: st.token + uint32(r)}
			own.add(va[r*ma.Hidden:][:ma.Hidden], vb[r*ma.Hidden:][:ma.Hidden], at)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	total.merge(own)
	return nil
}

// Bins of one less the cosine: logarithmic from 1e-17, 64 a decade.
const (
	binsADecade = 64
	leastPower  = -17
	bins        = 2 + binsADecade*(-leastPower+1)
	worstRows   = 3
)

// layerTally gathers rows of one layer in bounded memory.
type layerTally struct {
	rows, same, nonFinite int64
	sum, errSum           float64 // of 1-cos, of errors
	most, errMost         float64
	hist                  []int64
	worst                 []worstRow // by error, greatest first
}

func newLayerTally() *layerTally { return &layerTally{hist: make([]int64, bins)} }

// add takes a pair of rows into account.
func (t *layerTally) add(a, b []float64, at worstRow) {
	t.rows++
	var aa, bb, dd float64
	same := true
	for i := range a {
		d := a[i] - b[i]
		same = same && math.Float64bits(a[i]) == math.Float64bits(b[i])
		aa, bb, dd = aa+a[i]*a[i], bb+b[i]*b[i], dd+d*d
	}
	if same {
		t.same++
	}
	if v := aa + bb + dd; math.IsNaN(v) || math.IsInf(v, 0) {
		t.nonFinite++
		return
	}
	away := oneLessCosine(a, b, aa, bb)
	at.Cosine = 1 - away
	if m := max(aa, bb); m > 0 {
		at.Error = math.Sqrt(dd / m)
	}
	t.sum, t.errSum = t.sum+away, t.errSum+at.Error
	t.most, t.errMost = max(t.most, away), max(t.errMost, at.Error)
	t.hist[bin(away)]++
	if !same {
		t.keep(at)
	}
}

// oneLessCosine is half the squared distance of the two directions, which,
// unlike one less the cosine, loses nothing where they nearly agree.
func oneLessCosine(a, b []float64, aa, bb float64) float64 {
	if aa == 0 || bb == 0 {
		if aa == bb {
			return 0
		}
		return 1
	}
	na, nb := math.Sqrt(aa), math.Sqrt(bb)
	var d float64
	for i := range a {
		x := a[i]/na - b[i]/nb
		d += x * x
	}
	return d / 2
}

func bin(away float64) int {
	if away <= 0 {
		return 0
	}
	return min(max(1+int(math.Floor((math.Log10(away)-leastPower)*binsADecade)), 0), bins-1)
}

// upper is the upper edge of a bin.
func upper(i int) float64 {
	if i == 0 {
		return 0
	}
	return math.Pow(10, leastPower+float64(i)/binsADecade)
}

func (t *layerTally) keep(r worstRow) {
	t.worst = append(t.worst, r)
	slices.SortFunc(t.worst, func(a, b worstRow) int {
		return cmp.Or(cmp.Compare(b.Error, a.Error), cmp.Compare(a.PositionA, b.PositionA), cmp.Compare(a.Row, b.Row))
	})
	t.worst = t.worst[:min(len(t.worst), worstRows)]
}

func (t *layerTally) merge(o *layerTally) {
	t.rows, t.same, t.nonFinite = t.rows+o.rows, t.same+o.same, t.nonFinite+o.nonFinite
	t.sum, t.errSum = t.sum+o.sum, t.errSum+o.errSum
	t.most, t.errMost = max(t.most, o.most), max(t.errMost, o.errMost)
	for i, n := range o.hist {
		t.hist[i] += n
	}
	for _, w := range o.worst {
		t.keep(w)
	}
}

// quantile is the least cosine of all but the share q of the rows.
func (t *layerTally) quantile(q float64, finite int64) float64 {
	left := int64(math.Ceil((1 - q) * float64(finite)))
	for i, n := range t.hist {
		if left -= n; left <= 0 {
			return 1 - min(upper(i), t.most)
		}
	}
	return 1 - t.most
}

func (t *layerTally) doc(layer int) comparedRows {
	d := comparedRows{Layer: layer, Rows: t.rows, NonFinite: t.nonFinite, Worst: t.worst}
	if d.Worst == nil {
		d.Worst = []worstRow{}
	}
	if t.rows > 0 {
		d.Identical = float64(t.same) / float64(t.rows)
	}
	if n := t.rows - t.nonFinite; n > 0 {
		d.Cosine = quantiles{Min: 1 - t.most, P1: t.quantile(0.01, n), Median: t.quantile(0.5, n), Mean: 1 - t.sum/float64(n)}
		d.Error = errorStats{Mean: t.errSum / float64(n), Max: t.errMost}
	}
	return d
}
