package cli

import (
	"fmt"

	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/states"
)

// lossDoc is what storing a layer as fp8 cost. A row's error is the length of
// what was lost of it over its length.
type lossDoc struct {
	Layer int     `json:"layer"`
	Rows  int64   `json:"rows"`
	Mean  float64 `json:"mean_error"`
	Max   float64 `json:"max_error"`
}

func lossDocs(losses []store.LayerLoss) []lossDoc {
	var out []lossDoc
	for _, x := range losses {
		out = append(out, lossDoc{Layer: x.Layer, Rows: x.Rows, Mean: x.Sum / float64(max(1, x.Rows)), Max: x.Max})
	}
	return out
}

// lossNote says in a few words what all layers cost; "" where nothing was lost.
func lossNote(losses []lossDoc) string {
	if len(losses) == 0 {
		return ""
	}
	worst, at := losses[0], losses[0]
	for _, x := range losses {
		if x.Mean > worst.Mean {
			worst = x
		}
		if x.Max > at.Max {
			at = x
		}
	}
	return fmt.Sprintf("fp8: mean row error up to %.2f%% (layer %d), max %.2f%% (layer %d)", 100*worst.Mean, worst.Layer, 100*at.Max, at.Layer)
}

// generationLosses is what check says of a generation that lost precision.
type generationLosses struct {
	Generation uint32    `json:"generation"`
	Name       string    `json:"name"`
	Measured   bool      `json:"measured"` // every blob was read and says what the ledger says
	Layers     []lossDoc `json:"layers"`
}

// quantization reports what a generation lost and lets each blob that is sound
// be held to it.
func (k *checker) quantization(g store.GenerationRow, o *states.VerifyOptions) error {
	if len(g.Losses) == 0 {
		return nil
	}
	k.doc.Quantization = append(k.doc.Quantization, generationLosses{Generation: g.ID, Name: g.Name,
		Measured: k.doc.Full && k.part[1] == 1, Layers: lossDocs(g.Losses)})
	rows, err := k.snap.Blobs(g.ID)
	if err != nil {
		return err
	}
	o.Sound = func(r *blob.Reader) error {
		for _, b := range rows {
			if b.No == r.Meta().Blob {
				return k.losses(r, b.Losses)
			}
		}
		return nil // the manifest is held to the ledger elsewhere
	}
	return nil
}

// losses compares what a blob says that quantizing cost with what was committed.
func (k *checker) losses(r *blob.Reader, want []store.LayerLoss) error {
	got, err := r.Losses()
	if err != nil {
		return err
	}
	m := r.Meta()
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = want[i] == store.LayerLoss{Layer: m.Layers[i], Rows: got[i].Rows, Sum: got[i].Sum, Max: got[i].Max}
	}
	if !same {
		return fmt.Errorf("its quantization errors are %v, committed were %v", got, want)
	}
	return nil
}

func (k *checker) printLosses() {
	for _, g := range k.doc.Quantization {
		how := "as recorded"
		if g.Measured {
			how = "as recorded and as every blob says"
		}
		fmt.Fprintf(k.out, "generation %d (%s) is fp8, %s; errors of rows:\n", g.Generation, g.Name, how)
		for _, x := range g.Layers {
			fmt.Fprintf(k.out, "  layer %d: mean %.3f%%, max %.3f%%, %d rows\n", x.Layer, 100*x.Mean, 100*x.Max, x.Rows)
		}
	}
}

// losses fills in what fp8 cost in this sample, over all rows of its entry.
func (d *catDoc) losses(s *states.Sample) error {
	list, err := s.Reader.EntryLosses(int(s.Position.Entry))
	for i, x := range list {
		d.Layers[i].Loss = &lossDoc{Layer: d.Layers[i].Layer, Rows: x.Rows, Mean: x.Mean(), Max: x.Max}
	}
	return err
}

func (d *catDoc) lossNote() string {
	var list []lossDoc
	for _, l := range d.Layers {
		if l.Loss != nil {
			list = append(list, *l.Loss)
		}
	}
	return lossNote(list)
}
