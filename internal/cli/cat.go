package cli

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
	"eaglebatch/store/states"

	"github.com/urfave/cli/v2"
)

type catDoc struct {
	Generation uint32     `json:"generation"`
	Position   int64      `json:"position"`
	Split      string     `json:"split"`
	StoredIn   string     `json:"stored_in"`
	Entry      uint32     `json:"entry"`
	Dataset    string     `json:"dataset"`
	Sample     uint64     `json:"sample"`
	Source     string     `json:"source,omitempty"`
	Line       int64      `json:"line,omitempty"`
	ID         string     `json:"id,omitempty"`
	Tokens     []uint32   `json:"tokens"`
	Mask       []int      `json:"mask"`
	Synthetic  bool       `json:"synthetic"`
	DType      string     `json:"dtype"` // as stored; values are shown as they are read
	Layers     []layerDoc `json:"layers"`
}

type layerDoc struct {
	Layer  int       `json:"layer"`
	Norm   float64   `json:"norm"` // mean over rows of the row's L2 norm
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	First  []float64 `json:"first"` // first values of row 0
	Rows   int       `json:"rows"`
	Finite bool      `json:"finite"`
	Loss   *lossDoc  `json:"quantization,omitempty"` // what fp8 cost
}

func (e *env) catCommand() *cli.Command {
	return &cli.Command{
		Name: "cat", Usage: "show one sample: where it came from, tokens, mask, states by layer", ArgsUsage: "GEN:POS",
		Description: "GEN is the number or name of a generation, POS a position in its order.\n\n  eaglebatch cat 2:0",
		Flags:       []cli.Flag{jsonFlag(), &cli.IntFlag{Name: "values", Value: 8, Usage: "show the first `N` values of a layer's first row"}},
		Action: func(c *cli.Context) error {
			arg, err := oneArg(c, "GEN:POS")
			if err != nil {
				return err
			}
			dir, err := e.workDir(c)
			if err != nil {
				return err
			}
			doc, err := catSample(dir, arg, c.Int("values"))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return e.printJSON(doc)
			}
			return e.printSample(doc)
		},
	}
}

// findGeneration looks a generation up by number or name.
func findGeneration(r store.Reader, ref string) (store.GenerationRow, error) {
	gens, err := r.Generations()
	if err != nil {
		return store.GenerationRow{}, err
	}
	var names []string
	for _, g := range gens {
		if g.Name == ref || strconv.FormatUint(uint64(g.ID), 10) == ref {
			return g, nil
		}
		names = append(names, g.Name)
	}
	err = usagef("there is no generation %q", ref)
	if near := human.Nearest(ref, names); near != "" {
		err = withHint(err, "did you mean %s?", near)
	}
	return store.GenerationRow{}, err
}

// openGeneration opens a generation of the workspace in dir for reading.
func openGeneration(dir, ref string) (*store.Snapshot, store.GenerationRow, *states.Generation, error) {
	snap, damage := store.Inspect(dir)
	if snap == nil {
		return nil, store.GenerationRow{}, nil, damage
	}
	g, err := findGeneration(snap, ref)
	if err != nil && damage != nil {
		err = damage // it may stand behind the damage
	}
	if err != nil {
		return nil, g, nil, err
	}
	if g.Origin == "adopted" || g.Kind == kindSamples {
		return nil, g, nil, usagef("generation %q holds no states that eaglebatch made", ref)
	}
	path := g.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	x, err := states.Open(path, g.State == store.GenBuilding)
	if errors.Is(err, os.ErrNotExist) {
		err = lost(snap, g, path, err)
	}
	return snap, g, x, err
}

// lost tells a generation that is not there yet, or not any more, from one of
// which the ledger says that it is.
func lost(snap *store.Snapshot, g store.GenerationRow, dir string, cause error) error {
	name := states.ManifestName
	switch g.State {
	case store.GenSealed:
	case store.GenBuilding:
		name = states.PlanName
		if blobs, err := snap.Blobs(g.ID); err != nil || len(blobs) == 0 {
			return errors.Join(cause, err)
		}
	default:
		return cause
	}
	path := filepath.Join(dir, name)
	return &store.CorruptError{Path: path, Offset: -1, Err: cause, Hint: fileHint(path)}
}

// missing makes damage of "not extracted yet" where the ledger has the blob.
func missing(snap *store.Snapshot, g store.GenerationRow, x *states.Generation, pos int64, cause error) error {
	p := x.Index().Position(pos)
	blobs, err := snap.Blobs(g.ID)
	if err != nil {
		return errors.Join(cause, err)
	}
	path := filepath.Join(x.Dir(), blob.FileName(p.Blob))
	if _, err := os.Stat(path); p.Gen != 0 || !errors.Is(err, os.ErrNotExist) ||
		!slices.ContainsFunc(blobs, func(b store.BlobRow) bool { return b.No == p.Blob }) {
		return cause
	}
	return &store.CorruptError{Path: path, Offset: -1, Err: os.ErrNotExist, Hint: fileHint(path)}
}

func catSample(dir, arg string, values int) (*catDoc, error) {
	ref, pos, ok := strings.Cut(arg, ":")
	n, perr := strconv.ParseInt(pos, 10, 64)
	if !ok || perr != nil {
		return nil, usagef("cat %q: want GEN:POS, such as 2:0", arg)
	}
	snap, g, x, err := openGeneration(dir, ref)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	if most := x.Index().Positions(); n < 0 || n >= most {
		return nil, usagef("cat %q: generation %d has positions 0 to %d", arg, g.ID, most-1)
	}
	s, err := x.At(n)
	if errors.Is(err, states.ErrAbsent) {
		err = missing(snap, g, x, n, err)
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m := x.Index().Meta()
	doc := &catDoc{
		Generation: g.ID, Position: n, Split: splitOf(m.Splits, n), Entry: s.Position.Entry,
		StoredIn: fmt.Sprintf("generation %d, %s", s.Reader.Meta().Generation, blob.FileName(s.Position.Blob)),
		Dataset:  m.Datasets[s.Position.Dataset], Sample: s.Position.Sample, Tokens: s.IDs, Synthetic: s.Reader.Meta().Synthetic,
		DType: s.Reader.Meta().DType,
	}
	for _, b := range s.Mask {
		doc.Mask = append(doc.Mask, int(b))
	}
	if err := doc.origin(snap, dir); err != nil {
		return nil, err
	}
	for i := range s.Reader.Meta().Layers {
		l, err := layerOf(s, i, values)
		if err != nil {
			return nil, err
		}
		doc.Layers = append(doc.Layers, l)
	}
	return doc, doc.losses(s)
}

func splitOf(splits []genindex.Split, pos int64) string {
	for _, s := range splits {
		if pos >= s.First && pos < s.First+s.Count {
			return s.Name
		}
	}
	return ""
}

// layerOf summarises one layer of a sample in pieces of bounded size.
func layerOf(s *states.Sample, i, values int) (layerDoc, error) {
	m := s.Reader.Meta()
	d := layerDoc{Layer: m.Layers[i], Min: math.Inf(1), Max: math.Inf(-1), Finite: true}
	step := max(1, (8<<20)/m.RowBytes())
	buf := make([]byte, step*m.RowBytes())
	rows, err := s.LayerRows(i)
	if err != nil {
		return d, err
	}
	var norms float64
	for at := 0; at < rows; at += step {
		n := min(step, rows-at)
		if err := s.Layer(buf[:n*m.RowBytes()], i, at, n); err != nil {
			return d, err
		}
		vals, err := floats(buf[:n*m.RowBytes()], m.DType, m.Hidden)
		if err != nil {
			return d, err
		}
		if at == 0 {
			d.First = slices.Clone(vals[:min(values, m.Hidden)])
		}
		norms += d.add(vals, m.Hidden)
	}
	d.Rows = rows
	if rows > 0 {
		d.Norm = norms / float64(rows)
	} else {
		d.Min, d.Max = 0, 0
	}
	return d, nil
}

// add takes rows into account and returns the sum of their norms.
func (d *layerDoc) add(vals []float64, hidden int) float64 {
	var norms float64
	for r := 0; r < len(vals); r += hidden {
		var sq float64
		for _, v := range vals[r : r+hidden] {
			d.Min, d.Max = min(d.Min, v), max(d.Max, v)
			sq += v * v
			d.Finite = d.Finite && !math.IsNaN(v) && !math.IsInf(v, 0)
		}
		norms += math.Sqrt(sq)
	}
	return norms
}

// origin looks up source file and line in the sample store, which a running
// writer may hold: then they are left out.
func (d *catDoc) origin(snap *store.Snapshot, dir string) error {
	rows, err := snap.Datasets()
	if err != nil || snap.Live {
		return err
	}
	for _, row := range rows {
		if row.Name != d.Dataset {
			continue
		}
		st, err := openSamples(dir, row)
		if err != nil {
			return err
		}
		defer st.Close()
		smp, err := st.Get(row.ID, d.Sample)
		if err != nil {
			return err
		}
		d.Line, d.ID = smp.Line, smp.ID
		if int(smp.File) < len(row.Sources) {
			d.Source = row.Sources[smp.File].Path
		}
	}
	return nil
}

func (e *env) printSample(d *catDoc) error {
	fmt.Fprintf(e.out, "generation %d position %d (%s): %s sample %d", d.Generation, d.Position, d.Split, d.Dataset, d.Sample)
	if d.Source != "" {
		fmt.Fprintf(e.out, ", %s line %d", d.Source, d.Line)
	}
	if d.ID != "" {
		fmt.Fprintf(e.out, ", id %q", d.ID)
	}
	fmt.Fprintf(e.out, "\nstored in %s, entry %d\n", d.StoredIn, d.Entry)
	if d.Synthetic {
		fmt.Fprintln(e.out, "the values are synthetic")
	}
	if n := d.lossNote(); n != "" {
		fmt.Fprintln(e.out, n)
	}
	fmt.Fprintf(e.out, "tokens (%d)  %s\nmask         %s\n\n", len(d.Tokens), short(d.Tokens), runs(d.Mask))
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "layer\trows\tmean norm\tmin\tmax\tfirst values")
	for _, l := range d.Layers {
		var first []string
		for _, v := range l.First {
			first = append(first, strconv.FormatFloat(v, 'g', 5, 64))
		}
		fmt.Fprintf(w, "%d\t%d\t%.5g\t%.5g\t%.5g\t%s\n", l.Layer, l.Rows, l.Norm, l.Min, l.Max, strings.Join(first, " "))
	}
	return w.Flush()
}

func short(ids []uint32) string {
	if len(ids) <= 32 {
		return fmt.Sprint(ids)
	}
	head, tail := fmt.Sprint(ids[:24]), fmt.Sprint(ids[len(ids)-6:])
	return strings.TrimSuffix(head, "]") + " … " + strings.TrimPrefix(tail, "[")
}

// runs writes a mask as runs: 12×0 30×1.
func runs(mask []int) string {
	var b strings.Builder
	for i := 0; i < len(mask); {
		j := i
		for j < len(mask) && mask[j] == mask[i] {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%d×%d", j-i, mask[i])
		i = j
	}
	return b.String()
}
