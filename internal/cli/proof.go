package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"eaglebatch/extract"
	"eaglebatch/internal/human"
	"eaglebatch/internal/progress"
	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/genindex"
	"eaglebatch/store/retain"
	"eaglebatch/store/states"
)

// proof seals the first samples of the plan as a generation of their own, in
// the room there is, so that the decision is made on states that were checked.
// The main generation points to them later: nothing is computed twice.
//
// Where the room does not hold all of the proof, it is made of as many samples
// as it holds; below leastProof, and where the rest would tell nothing, there is
// none, and without says what to do about it.
func (j *job) proof(ctx context.Context, p store.PlanRow) (without []string, err error) {
	n := min(j.cfg.Plan.Proof, p.Samples)
	if n <= 0 {
		return nil, nil
	}
	_, done, err := j.sealedProof()
	if err != nil || done {
		return nil, err
	}
	o, err := j.planOptions()
	if err != nil {
		return nil, err
	}
	fit, err := plan.FitProof(ctx, j.ws, o, n, min(n, leastProof))
	if err != nil {
		return nil, fmt.Errorf("proof: %w", err)
	}
	if fit.Samples < min(n, leastProof) {
		return []string{fmt.Sprintf("no proof: its first %d samples need %s and %s are free above the reserve; free %s more and run again to see states of this model before deciding (plan.proof: 0 asks without this line)",
			min(n, leastProof), human.Sized(fit.Least), human.Sized(fit.Room), human.Sized(fit.Least-fit.Room))}, nil
	}
	if fit.Samples < n {
		j.rep.Note("the %s free above the reserve hold a proof of %d samples, not of %d", human.Sized(fit.Room), fit.Samples, n)
	}
	if err := j.runner().Redo(ctx, store.PhasePlan); err != nil {
		return nil, err
	}
	o.Limit = fit.Samples
	if _, err := plan.Run(ctx, j.ws, o, j.rep); err != nil {
		return nil, err
	}
	if err := j.sealProof(ctx, fit.Samples); err != nil {
		return nil, err
	}
	if err := j.resetExtract(ctx); err != nil {
		return nil, err
	}
	_, err = j.plan(ctx)
	return nil, err
}

// leastProof is how many samples a proof has at least: fewer say little of ten
// datasets, or of what states take on disk.
const leastProof = 16

// resetExtract makes the extract phase pending again: what the proof counted
// there is not progress of the plan to come.
func (j *job) resetExtract(ctx context.Context) error {
	return j.ws.Update(ctx, "proof sealed", func(tx *store.Tx) error {
		return tx.PutPhase(store.PhaseRow{Name: store.PhaseExtract, State: store.Pending})
	})
}

func (j *job) sealProof(ctx context.Context, n int64) error {
	x, done, err := j.extractOptions(ctx)
	if err != nil {
		return err
	}
	defer done()
	x.Kind = retain.KindProof
	r, err := extract.Run(ctx, j.ws, x, j.rep)
	if err != nil {
		return fmt.Errorf("proof: %w", err)
	}
	if r.Stopped {
		return fmt.Errorf("%w: proof of %d samples", errInterrupted, n)
	}
	j.rep.Note("a proof of %s samples is sealed as generation %d (%s)", human.Count(r.Generation.Samples), r.Generation.ID, human.Bytes(r.Generation.Bytes))
	return nil
}

// sealedProof returns the newest sealed proof of the same identity.
func (j *job) sealedProof() (proof store.GenerationRow, found bool, err error) {
	err = j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			if g.Kind == retain.KindProof && g.State == store.GenSealed && slices.Equal(g.Identity, j.identity()) {
				proof, found = g, true
			}
		}
		return err
	})
	return proof, found, err
}

// proofDoc is what a sealed proof showed. It is kept in the ledger as JSON,
// under proofKey, so that asking again does not look again.
type proofDoc struct {
	Generation uint32          `json:"generation"`
	Name       string          `json:"name"`
	Samples    int64           `json:"samples"`
	Tokens     int64           `json:"tokens"`
	Bytes      int64           `json:"bytes"`
	Rows       int64           `json:"sense_rows"` // asked whether they rank the next token first
	Top1       int64           `json:"sense_top1"`
	Compared   []proofCompared `json:"compared"`
}

// proofCompared holds a proof against an older generation.
type proofCompared struct {
	Generation uint32 `json:"generation"`
	Name       string `json:"name"`
	Matched    int64  `json:"matched"` // samples in both
	Verdict    string `json:"verdict"` // as compare has it
	Why        string `json:"why"`
}

func proofKey(gen uint32) string { return fmt.Sprintf("proof/%06d", gen) }

// judgeProof checks every chunk of the sealed proof and compares its states with
// those of older generations, and says in a few lines what came of it. Without
// a proof it says nothing.
func (j *job) judgeProof(ctx context.Context) ([]string, error) {
	g, ok, err := j.sealedProof()
	if err != nil || !ok {
		return nil, err
	}
	doc := proofDoc{Generation: g.ID, Name: g.Name, Samples: g.Samples, Tokens: g.Tokens, Bytes: g.Bytes, Compared: []proofCompared{}}
	old, foreign, err := j.comparable(g)
	if err != nil {
		return nil, err
	}
	known, err := j.knownProof(g.ID)
	if err != nil {
		return nil, err
	}
	if known != nil {
		doc = *known
	} else if err := j.checkProof(ctx, g, &doc); err != nil {
		return nil, err
	}
	for _, o := range old {
		if slices.ContainsFunc(doc.Compared, func(c proofCompared) bool { return c.Generation == o.ID }) {
			continue
		}
		d, err := compareGenerations(ctx, j.ws.Dir(), fmt.Sprint(g.ID), fmt.Sprint(o.ID), g.Samples, j.rep)
		if err != nil {
			return nil, fmt.Errorf("comparing the proof with generation %d (%s): %w", o.ID, o.Name, err)
		}
		doc.Compared = append(doc.Compared, proofCompared{Generation: o.ID, Name: o.Name, Matched: d.Matched, Verdict: d.Verdict, Why: d.Why})
	}
	v, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	if err := j.ws.Update(ctx, "proof examined", func(tx *store.Tx) error { return tx.PutValue(proofKey(g.ID), v) }); err != nil {
		return nil, err
	}
	return append(doc.lines(), foreign...), nil
}

func (j *job) knownProof(gen uint32) (*proofDoc, error) {
	var v []byte
	err := j.ws.View(func(r store.Reader) (err error) {
		v, _, err = r.Value(proofKey(gen))
		return err
	})
	if err != nil || v == nil {
		return nil, err
	}
	doc := &proofDoc{}
	if err := json.Unmarshal(v, doc); err != nil {
		return nil, &store.CorruptError{Path: "ledger", Key: proofKey(gen), Offset: -1, Err: err}
	}
	return doc, nil
}

// comparable lists the newest generations made here that hold states of the
// proof's model and do not serve it, and says of the adopted ones why they are
// not among them.
func (j *job) comparable(proof store.GenerationRow) (old []store.GenerationRow, foreign []string, err error) {
	const most = 3
	model := func(g store.GenerationRow) string {
		i := slices.IndexFunc(g.Identity, func(p store.Part) bool { return p.Key == "model" })
		if i < 0 {
			return ""
		}
		return g.Identity[i].Value
	}
	err = j.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range slices.Backward(gens) {
			switch {
			case g.ID == proof.ID || g.State != store.GenSealed || g.Kind == retain.KindSamples || slices.Contains(proof.Needs, g.ID):
			case g.Origin == retain.Adopted:
				foreign = append(foreign, fmt.Sprintf("%s is not compared: %s files do not say which layers they hold, before or after which norm", g.Name, g.Adopted.Format))
			case len(old) < most && model(g) == model(proof):
				old = append(old, g)
			}
		}
		return err
	})
	return old, foreign, err
}

// checkProof decodes and hashes every chunk.
func (j *job) checkProof(ctx context.Context, g store.GenerationRow, doc *proofDoc) error {
	dir := j.ws.GenerationDir(g)
	m, _, err := genindex.ReadManifest(dir)
	if err != nil {
		return err
	}
	j.rep.Start(progress.Phase{Name: "check", Unit: "bytes", Total: g.Bytes})
	defer j.rep.Finish()
	var bad []error
	o := states.VerifyOptions{Full: true, Done: func(_ string, n int64) { j.rep.Add(progress.Delta{Units: n, Bytes: n}) }}
	if err := states.Verify(ctx, dir, m.Files, o, func(p states.Problem) {
		bad = append(bad, &store.CorruptError{Path: p.Path, Offset: p.Offset, Err: errors.New(p.Error)})
	}); err != nil {
		return err
	}
	if len(bad) > 0 {
		return fmt.Errorf("the proof, generation %d, is damaged: %w", g.ID, errors.Join(bad...))
	}
	return j.ws.View(func(r store.Reader) error {
		v, ok, err := r.Value(extract.SenseKey(g.ID))
		if err != nil || !ok {
			return err
		}
		var tallies map[string]extract.Tally
		if err := json.Unmarshal(v, &tallies); err != nil {
			return &store.CorruptError{Path: "ledger", Key: extract.SenseKey(g.ID), Offset: -1, Err: err}
		}
		for _, t := range tallies {
			doc.Rows, doc.Top1 = doc.Rows+t.Rows, doc.Top1+t.Top1
		}
		return nil
	})
}

// lines are the document for people.
func (d *proofDoc) lines() []string {
	s := fmt.Sprintf("proof: generation %d (%s), %s samples, %s tokens, %s, sealed, every chunk checked", d.Generation, d.Name, human.Count(d.Samples), human.Count(d.Tokens), human.Bytes(d.Bytes))
	if d.Rows > 0 {
		s += fmt.Sprintf("; the next token comes first in %s of %s rows", human.Percent(float64(d.Top1)/float64(d.Rows)), human.Count(d.Rows))
	}
	out := []string{s}
	for _, c := range d.Compared {
		out = append(out, fmt.Sprintf("compared with generation %d (%s): %s of %s samples are in both: %s: %s", c.Generation, c.Name, human.Count(c.Matched), human.Count(d.Samples), c.Verdict, c.Why))
	}
	return out
}
