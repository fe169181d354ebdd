package cli

import (
	"fmt"
	"text/tabwriter"

	"eaglebatch/internal/human"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

// balance is one line of the books: Total must equal the sum of Parts.
type balance struct {
	What  string `json:"what"`
	Total int64  `json:"total"`
	Parts []part `json:"parts"`
	OK    bool   `json:"ok"`
}

type part struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

func newBalance(what string, total int64, parts ...part) balance {
	b := balance{What: what, Total: total, Parts: parts}
	var sum int64
	for _, p := range parts {
		sum += p.Count
	}
	b.OK = sum == total
	return b
}

func (e *env) auditCommand() *cli.Command {
	return &cli.Command{
		Name: "audit", Usage: "the books: every input line and every planned sample accounted for",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			dir, err := e.workDir(c)
			if err != nil {
				return err
			}
			snap, err := store.Inspect(dir)
			if err != nil {
				return err
			}
			books, err := audit(snap)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				err = e.printJSON(map[string]any{"balances": books})
			} else {
				err = e.printBooks(books)
			}
			for _, b := range books {
				if !b.OK && err == nil {
					err = fmt.Errorf("%w: %s does not add up", errDamage, b.What)
				}
			}
			return err
		},
	}
}

func audit(r store.Reader) ([]balance, error) {
	rows, err := r.Datasets()
	if err != nil {
		return nil, err
	}
	var books []balance
	var merged int64
	for _, d := range rows {
		books = append(books, newBalance(d.Name+": lines read", d.Lines, part{"accepted", d.Accepted}, part{"duplicate", d.Duplicates},
			part{"blank", d.Blank}, part{"rejected", d.Rejected}))
		merged += d.Accepted
	}
	o, ok, err := r.Order()
	if err != nil || !ok {
		return books, err
	}
	split := []part{{"train", o.N - o.Repeated}, {"eval", o.Eval}, {"subsampled", o.Subsampled}, {"equal to one in eval", o.EvalTwins}}
	if since := merged - o.Merged; since != 0 {
		split = append(split, part{"merged since", since})
	}
	books = append(books, newBalance("merged samples", merged, split...))
	books = append(books, newBalance("positions after weights and splits", o.N+o.Eval, part{"train", o.N - o.Repeated}, part{"repeated by weights", o.Repeated}, part{"eval", o.Eval}))
	p, ok, err := r.Plan()
	if err != nil || !ok || p.Order != o.ID {
		return books, err
	}
	books = append(books, newBalance("positions in the order", o.N+o.Eval, part{"planned", p.Samples}, part{"dropped", p.Dropped},
		part{"over-length", p.OverLength}, part{"emptied by the cap", p.Emptied}))
	books = append(books, newBalance("planned positions", p.Samples, part{"new", p.NewSamples}, part{"reused", p.Reused}, part{"repeated", p.Repeated}))
	var done, bad int64
	if p.Generation != 0 {
		blobs, err := r.Blobs(p.Generation)
		if err != nil {
			return nil, err
		}
		for _, b := range blobs {
			done, bad = done+b.Samples, bad+b.Quarantined
		}
	}
	left := p.NewSamples - done - bad
	b := newBalance("new samples", p.NewSamples, part{"extracted", done}, part{"quarantined", bad}, part{"left to do", left})
	b.OK = b.OK && left >= 0
	return append(books, b), nil
}

func (e *env) printBooks(books []balance) error {
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', 0)
	for _, b := range books {
		verdict := "ok"
		if !b.OK {
			verdict = "DOES NOT ADD UP"
		}
		fmt.Fprintf(w, "%s\t%s\t=", b.What, human.Count(b.Total))
		for i, p := range b.Parts {
			if i > 0 {
				fmt.Fprint(w, " +")
			}
			fmt.Fprintf(w, " %s %s", human.Count(p.Count), p.Name)
		}
		fmt.Fprintf(w, "\t%s\n", verdict)
	}
	return w.Flush()
}
