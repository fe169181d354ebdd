package plan

import (
	"errors"
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// Prediction is what a plan was said to take. Zero seconds: nothing was said.
type Prediction struct {
	Plan        uint32  `json:"plan"`
	Bytes       int64   `json:"bytes"` // of blobs, on disk
	BytesLow    int64   `json:"bytes_low"`
	BytesHigh   int64   `json:"bytes_high"`
	BytesFrom   string  `json:"bytes_from"` // "": raw bytes, since no ratio was known
	Seconds     float64 `json:"seconds"`
	SecondsLow  float64 `json:"seconds_low"`
	SecondsHigh float64 `json:"seconds_high"`
	SecondsFrom string  `json:"seconds_from"`
}

// Predict returns what a plan was said to take when it was made.
func Predict(r store.Reader, row store.PlanRow) (Prediction, error) {
	d, err := getDetail(r, row.ID)
	if err != nil {
		return Prediction{}, err
	}
	return predict(row, d.Basis), nil
}

// Prediction is what the report foretells.
func (rep Report) Prediction() Prediction { return predict(rep.Plan, rep.Basis) }

func predict(row store.PlanRow, b Basis) Prediction {
	p := Prediction{Plan: row.ID, Bytes: row.ExpectedBytes, BytesFrom: b.RatioFrom, Seconds: row.Seconds, SecondsFrom: b.RateFrom}
	spread := b.RatioSpread
	p.BytesLow = int64(float64(p.Bytes) * (1 - spread))
	p.BytesHigh = int64(float64(p.Bytes) * (1 + spread))
	if row.Ratio == 0 {
		p.BytesLow = 0 // raw bytes are only a bound from above
	}
	p.SecondsLow = p.Seconds / (1 + b.RateSpread)
	p.SecondsHigh = p.Seconds * (1 + b.RateSpread)
	return p
}

// Outcome holds a prediction against what came of it.
type Outcome struct {
	Generation uint32     `json:"generation"`
	Name       string     `json:"name"`
	Predicted  Prediction `json:"predicted"`
	Bytes      int64      `json:"bytes"` // of its blobs
	Seconds    float64    `json:"seconds"`
	BytesOff   float64    `json:"bytes_off"`   // actual/predicted - 1
	SecondsOff float64    `json:"seconds_off"` // likewise; 0 where nothing was predicted
}

// Outcomes returns one for each sealed generation of states that was made here,
// oldest first.
func Outcomes(r store.Reader) ([]Outcome, error) {
	gens, err := r.Generations()
	if err != nil {
		return nil, err
	}
	out := []Outcome{}
	for _, g := range gens {
		if g.State != store.GenSealed || g.Kind != retain.KindStates || g.Origin == retain.Adopted || g.Plan == 0 {
			continue
		}
		row, ok, err := r.PlanByID(g.Plan)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, &store.CorruptError{Path: "ledger", Key: fmt.Sprint("plan ", g.Plan), Offset: -1, Err: errors.New("the plan of a sealed generation is missing")}
		}
		p, err := Predict(r, row)
		if err != nil {
			return nil, err
		}
		n, err := blobBytes(r, g)
		if err != nil {
			return nil, err
		}
		o := Outcome{Generation: g.ID, Name: g.Name, Predicted: p, Bytes: n, Seconds: g.Seconds}
		if p.Bytes > 0 {
			o.BytesOff = float64(o.Bytes)/float64(p.Bytes) - 1
		}
		if p.Seconds > 0 {
			o.SecondsOff = o.Seconds/p.Seconds - 1
		}
		out = append(out, o)
	}
	return out, nil
}

// blobBytes is what the blobs of a generation take: its total also counts the
// index and the head, which do not grow with the states.
func blobBytes(r store.Reader, g store.GenerationRow) (int64, error) {
	blobs, err := r.Blobs(g.ID)
	if err != nil || len(blobs) == 0 {
		return g.Bytes, err
	}
	var n int64
	for _, b := range blobs {
		n += b.Bytes
	}
	return n, nil
}
