package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
	"eaglebatch/store/states"

	"github.com/urfave/cli/v2"
)

// compareDoc is the JSON document of compare. Errors of a row are
// |a-b| / max(|a|, |b|) with L2 norms; quantiles are of all rows compared,
// good to 4% of one less the cosine.
type compareDoc struct {
	A          comparedDoc    `json:"a"`
	B          comparedDoc    `json:"b"`
	Verdict    string         `json:"verdict"` // identical, close, doubtful, different, not comparable
	Why        string         `json:"why"`
	SameLayers bool           `json:"same_layers"`
	Sampled    int64          `json:"sampled"`   // positions of a that were looked for in b; 0: all
	Matched    int64          `json:"matched"`   // samples compared
	OnlyA      int64          `json:"only_in_a"` // of the positions looked for, repeats apart
	Absent     int64          `json:"absent"`    // in both, but not extracted yet in one
	OnlyB      *int64         `json:"only_in_b"` // null where not all were looked for
	IDsDiffer  int64          `json:"ids_differ"`
	MaskDiffer int64          `json:"mask_differs"`
	Rows       int64          `json:"rows"` // compared, over all layers
	Layers     []comparedRows `json:"layers"`
}

type comparedDoc struct {
	Generation  uint32 `json:"generation"`
	Name        string `json:"name"`
	Positions   int64  `json:"positions"`
	Layers      []int  `json:"layers"`
	Hidden      int    `json:"hidden_size"`
	DType       string `json:"dtype"`
	LastPreNorm bool   `json:"last_prenorm"`
	Model       string `json:"model"`
	Engine      string `json:"engine"`
	Synthetic   bool   `json:"synthetic"`
	Partial     bool   `json:"partial"`
}

type comparedRows struct {
	Layer     int        `json:"layer"`
	Rows      int64      `json:"rows"`
	Identical float64    `json:"bit_identical"` // share of the rows
	NonFinite int64      `json:"non_finite"`    // rows with NaN or infinity, in neither statistic
	Cosine    quantiles  `json:"cosine"`
	Error     errorStats `json:"relative_error"`
	Worst     []worstRow `json:"worst"`
}

type quantiles struct {
	Min    float64 `json:"min"`
	P1     float64 `json:"p1"`
	Median float64 `json:"median"`
	Mean   float64 `json:"mean"`
}

type errorStats struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
}

type worstRow struct {
	PositionA int64   `json:"position_a"`
	PositionB int64   `json:"position_b"`
	Dataset   string  `json:"dataset"`
	Sample    uint64  `json:"sample"`
	Row       uint32  `json:"row"`
	Cosine    float64 `json:"cosine"`
	Error     float64 `json:"relative_error"`
}

func (e *env) compareCommand() *cli.Command {
	return &cli.Command{
		Name: "compare", Usage: "compare the states of two generations, sample by sample", ArgsUsage: "GEN GEN",
		Description: "Samples are matched by their tokens, whatever their place in the order; where one is cut\n" +
			"shorter, the tokens that both have are compared.\n\n  eaglebatch compare 2 5 --sample 200",
		Flags: []cli.Flag{jsonFlag(), &cli.Int64Flag{Name: "sample", Usage: "compare only `N` samples, spread evenly over the first one's order"}},
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return usagef("compare takes two generations, such as 2 5")
			}
			if c.Int64("sample") < 0 {
				return usagef("--sample %d: want a number above zero", c.Int64("sample"))
			}
			dir, err := e.workDir(c)
			if err != nil {
				return err
			}
			ctx, stop := e.phaseContext(c.Context)
			defer stop()
			doc, err := compareGenerations(ctx, dir, c.Args().Get(0), c.Args().Get(1), c.Int64("sample"), e.reporter(c))
			if err != nil {
				return cancelled(ctx, err)
			}
			if c.Bool("json") {
				return e.printJSON(doc)
			}
			return e.printCompare(doc)
		},
	}
}

// leased is a generation open for reading, which gc leaves alone meanwhile.
type leased struct {
	*states.Generation
	row   store.GenerationRow
	lease *genindex.Lease
}

func openLeased(dir, ref string) (*leased, error) {
	_, row, x, err := openGeneration(dir, ref)
	if err != nil {
		return nil, err
	}
	l, err := genindex.Hold(x.Dir())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("generation %q: %w", ref, err), x.Close())
	}
	return &leased{x, row, l}, nil
}

func (l *leased) close() error { return errors.Join(l.Close(), l.lease.Close()) }

func (l *leased) doc() comparedDoc {
	m := l.Index().Meta().Blob
	return comparedDoc{Generation: l.row.ID, Name: l.row.Name, Positions: l.Index().Positions(), Layers: m.Layers, Hidden: m.Hidden,
		DType: m.DType, LastPreNorm: m.LastPreNorm, Model: m.Model, Engine: m.Engine, Synthetic: m.Synthetic, Partial: l.Partial()}
}

func compareGenerations(ctx context.Context, dir, refA, refB string, n int64, rep progress.Reporter) (_ *compareDoc, err error) {
	a, err := openLeased(dir, refA)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	b, err := openLeased(dir, refB)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	doc := &compareDoc{A: a.doc(), B: b.doc(), Layers: []comparedRows{}}
	if n < doc.A.Positions {
		doc.Sampled = n
	}
	doc.SameLayers = slices.Equal(doc.A.Layers, doc.B.Layers)
	if doc.A.Hidden != doc.B.Hidden {
		doc.Verdict, doc.Why = "not comparable", fmt.Sprintf("rows of %d and %d values", doc.A.Hidden, doc.B.Hidden)
		return doc, nil
	}
	k, err := newComparer(a, b, rep)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(k.run(ctx, doc), k.close()); err != nil {
		return nil, err
	}
	doc.judge()
	return doc, nil
}

// Where a comparison is called close or doubtful. The bounds are a judgement,
// not derived: storing fp32 states as bf16 left every cosine of the quickstart
// above 0.99999, which is far inside them.
const (
	closeP1, closeMin = 0.999, 0.9
	doubtfulMedian    = 0.99
)

// judge draws the verdict from the numbers.
func (d *compareDoc) judge() {
	switch {
	case d.Matched == 0:
		d.Verdict, d.Why = "not comparable", "no sample of one is in the other"
		return
	case len(d.Layers) == 0:
		d.Verdict, d.Why = "not comparable", fmt.Sprintf("no layer in common: %v and %v", d.A.Layers, d.B.Layers)
		return
	case d.IDsDiffer > 0:
		d.Verdict, d.Why = "different", fmt.Sprintf("%d samples have other token ids", d.IDsDiffer)
		return
	}
	identical := true
	for _, l := range d.Layers {
		identical = identical && l.Identical == 1
		switch {
		case l.NonFinite > 0:
			d.worse("different", "layer %d has %d rows that are not finite", l.Layer, l.NonFinite)
		case l.Cosine.Median < doubtfulMedian:
			d.worse("different", "layer %d has a median cosine of %.4g, as a shifted layer, another norm or another model would give", l.Layer, l.Cosine.Median)
		case l.Cosine.P1 < closeP1 || l.Cosine.Min < closeMin:
			d.worse("doubtful", "layer %d agrees in most rows, but 1%% of them have a cosine under %.4g (least %.4g)", l.Layer, l.Cosine.P1, l.Cosine.Min)
		}
	}
	switch {
	case d.Verdict != "":
	case identical:
		d.Verdict, d.Why = "identical", "every row compared has the same bits"
	default:
		d.Verdict, d.Why = "close", "the rows differ as rounding and other kernels make them differ"
	}
}

// worse lowers the verdict; the first reason of the worst one stays.
func (d *compareDoc) worse(verdict, format string, args ...any) {
	if d.Verdict == "different" || d.Verdict == verdict {
		return
	}
	d.Verdict, d.Why = verdict, fmt.Sprintf(format, args...)
}

func (e *env) printCompare(d *compareDoc) error {
	for i, g := range []comparedDoc{d.A, d.B} {
		norm := map[bool]string{true: "pre-norm", false: "post-norm"}[g.LastPreNorm]
		fmt.Fprintf(e.out, "%c  generation %d (%s): %s positions, layers %v, %s, last %s, %s\n", 'a'+i, g.Generation, g.Name, human.Count(g.Positions), g.Layers, g.DType, norm, g.Engine)
	}
	for _, l := range []struct{ what, a, b string }{
		{"models", d.A.Model, d.B.Model}, {"last states", fmt.Sprint(d.A.LastPreNorm), fmt.Sprint(d.B.LastPreNorm)},
		{"layers", fmt.Sprint(d.A.Layers), fmt.Sprint(d.B.Layers)},
	} {
		if l.a != l.b {
			fmt.Fprintf(e.out, "the %s differ\n", l.what)
		}
	}
	var parts []string
	if d.OnlyB != nil {
		parts = append(parts, human.Count(*d.OnlyB)+" positions only in b")
	}
	if d.Absent > 0 {
		parts = append(parts, human.Count(d.Absent)+" not extracted yet")
	}
	if d.IDsDiffer+d.MaskDiffer > 0 {
		parts = append(parts, fmt.Sprintf("%s with other ids, %s with another mask", human.Count(d.IDsDiffer), human.Count(d.MaskDiffer)))
	}
	fmt.Fprintf(e.out, "%s\n\n", strings.Join(slices.Concat([]string{human.Count(d.Matched) + " samples compared", human.Count(d.OnlyA) + " only in a"}, parts), ", "))
	if err := e.printLayers(d); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.out, "verdict: %s: %s\n", d.Verdict, d.Why)
	return err
}

func (e *env) printLayers(d *compareDoc) error {
	if len(d.Layers) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "layer\trows\tsame bits\tcosine min\tp1\tmedian\tmean\terror mean\tmax")
	for _, l := range d.Layers {
		fmt.Fprintf(w, "%d\t%s\t%s\t%.9f\t%.9f\t%.9f\t%.9f\t%.3g\t%.3g\n", l.Layer, human.Count(l.Rows), human.Percent(l.Identical),
			l.Cosine.Min, l.Cosine.P1, l.Cosine.Median, l.Cosine.Mean, l.Error.Mean, l.Error.Max)
	}
	fmt.Fprintln(w)
	if !slices.ContainsFunc(d.Layers, func(l comparedRows) bool { return len(l.Worst) > 0 }) {
		return w.Flush()
	}
	fmt.Fprintln(w, "worst rows: layer\terror\tcosine\ta\tb\tdataset\tsample\trow")
	for _, l := range d.Layers {
		for _, r := range l.Worst {
			fmt.Fprintf(w, "%d\t%.3g\t%.9f\t%d:%d\t%d:%d\t%s\t%d\t%d\n", l.Layer, r.Error, r.Cosine, d.A.Generation, r.PositionA, d.B.Generation, r.PositionB, r.Dataset, r.Sample, r.Row)
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}
