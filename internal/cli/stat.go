package cli

import (
	"cmp"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/plan"
	"eaglebatch/store"

	"github.com/urfave/cli/v2"
)

func (e *env) statCommand() *cli.Command {
	return &cli.Command{
		Name:  "stat",
		Usage: "where everything stands and what to do next; works at any moment and takes no lock",
		Flags: []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			dir, err := e.workDir(c)
			if err != nil {
				return err
			}
			doc, err := e.stat(c, dir)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				err = e.printJSON(doc)
			} else {
				err = e.printStat(doc)
			}
			if err == nil && doc.damage != nil {
				err = fmt.Errorf("%w: %w", errDamage, doc.damage)
			}
			return err
		},
	}
}

// stat collects the document from a lock-free look at the workspace.
func (e *env) stat(c *cli.Context, dir string) (*statDoc, error) {
	snap, err := store.Inspect(dir)
	if snap == nil {
		return nil, err
	}
	doc := &statDoc{Schema: 1, Workspace: dir, Live: snap.Live, AsOf: snap.AsOf}
	if err != nil {
		if !errors.Is(err, store.ErrCorrupt) {
			return nil, err
		}
		doc.Damage, doc.damage = err.Error(), err
	}
	if snap.StatusErr != nil {
		doc.Notes = append(doc.Notes, fmt.Sprintf("status.json cannot be read and is left out: %v", snap.StatusErr))
	}
	if snap.Torn > 0 {
		doc.Notes = append(doc.Notes, "the last step in checkpoints.jsonl is incomplete and does not count; the next run drops it")
	}
	if sp, err := fsx.SpaceAt(dir); err == nil && sp.Free < store.LowRoom {
		doc.Notes = append(doc.Notes, fmt.Sprintf("the disk is full: %s free, at least %s are missing before a run can get anywhere", human.Bytes(sp.Free), human.Bytes(store.LowRoom-sp.Free)))
	}
	if snap.Live {
		doc.Holder = &holderDoc{PID: snap.Holder.PID, Command: snap.Holder.Command, Started: snap.Holder.Started}
	} else if st := snap.Status; st != nil {
		doc.LastRun = &lastRunDoc{Clean: st.Clean, ExitCode: st.ExitCode, At: st.Updated}
	}
	fill := []func(*store.Snapshot) error{doc.phases, doc.rows, doc.plan, doc.generations, doc.extract, doc.outcomes}
	for _, f := range fill {
		if err := f(snap); err != nil {
			return nil, err
		}
	}
	if doc.Extract != nil && doc.Extract.Gauges != nil {
		var endpoints []string
		if cfg, err := e.load(c); err == nil { // without it the slots have no names
			endpoints = cfg.Extract.Endpoints
		}
		doc.Extract.Slots = slotDocs(doc.Extract.Gauges, endpoints)
	}
	doc.Next = e.next(c, doc)
	return doc, nil
}

func (d *statDoc) phases(s *store.Snapshot) error {
	for _, name := range store.Phases() {
		row, ok, err := s.Phase(name)
		if err != nil {
			return err
		}
		p := phaseDoc{
			Name: name, State: string(row.State), Done: row.Done, Total: row.Total, Unit: row.Unit,
			Started: timePtr(row.Started), Finished: timePtr(row.Finished), Seconds: row.Seconds, Error: row.Error,
		}
		if !ok {
			p.State = string(store.Pending)
		}
		// A blocked gc phase is recorded as pending with its reason.
		if name == store.PhaseGC && p.State == string(store.Pending) && p.Error != "" {
			p.State = string(store.Blocked)
		}
		if p.Unit == "" {
			p.Unit = "samples"
		}
		if st := s.Status; s.Live && st != nil && st.Phase == name && p.State == string(store.Running) && st.Total > 0 {
			p.Done, p.Total = max(p.Done, st.Done), max(p.Total, st.Total)
		}
		d.Phases = append(d.Phases, p)
	}
	return nil
}

func (d *statDoc) rows(s *store.Snapshot) error {
	rows, err := s.Datasets()
	if err != nil {
		return err
	}
	d.Datasets = datasetDocs(rows)
	o, ok, err := s.Order()
	if ok {
		d.Shuffle = shuffleDocOf(o)
		d.outdate(rows, o)
	}
	return err
}

// outdate shows the phases behind the merge as stale where samples were merged
// since. The ledger has them as done: only a redo gives up what they made.
func (d *statDoc) outdate(rows []store.DatasetRow, o store.OrderRow) {
	var merged int64
	for _, r := range rows {
		merged += r.Accepted
	}
	if merged == o.Merged {
		return
	}
	for i := range d.Phases {
		if p := &d.Phases[i]; p.Name != store.PhaseMerge && p.State == string(store.Done) {
			p.State = string(store.Stale)
			d.outdated = d.outdated || p.Name == store.PhaseShuffle
		}
	}
}

func (d *statDoc) plan(s *store.Snapshot) error {
	p, ok, err := s.Plan()
	if err != nil || !ok {
		return err
	}
	d.Plan = planDocOf(p)
	d.Notes = append(d.Notes, plan.Cautions(p)...)
	if sp, err := fsx.SpaceAt(d.Workspace); err == nil {
		d.Plan.DiskFreeNow = sp.Free
	}
	return nil
}

func (d *statDoc) generations(s *store.Snapshot) error {
	gens, err := s.Generations()
	d.Generations = []generationRow{}
	for _, g := range generationDocs(d.Workspace, gens) {
		if g.Kind != kindSamples {
			d.Generations = append(d.Generations, g)
		}
	}
	return err
}

// extract adds up what the plan in force has in committed blobs.
func (d *statDoc) extract(s *store.Snapshot) error {
	p, ok, err := s.Plan()
	if err != nil || !ok {
		return err
	}
	x := &extractDoc{SamplesTotal: p.NewSamples}
	var raw int64
	if p.Generation != 0 {
		blobs, err := s.Blobs(p.Generation)
		if err != nil {
			return err
		}
		for _, b := range blobs {
			x.SamplesDone += b.Samples
			x.TokensDone += b.Tokens
			x.Quarantined += b.Quarantined
			raw += b.RawBytes
		}
		if g, ok, err := s.Generation(p.Generation); err != nil {
			return err
		} else if ok {
			x.ActualSeconds = g.Seconds
			if g.State != store.GenSealed && g.State != store.GenBuilding {
				x.gone = fmt.Sprintf("the states of this plan, generation %d (%s), are %s", g.ID, g.Name, g.State)
			}
		}
	}
	x.Left = x.SamplesTotal - x.SamplesDone - x.Quarantined
	if sp, serr := fsx.SpaceAt(d.Workspace); x.Left > 0 && serr == nil { // 0 bytes free is an answer
		left := p.RawBytes - raw
		if p.RawBytes > 0 && p.ExpectedBytes > 0 {
			left = int64(float64(left) * float64(p.ExpectedBytes) / float64(p.RawBytes))
		}
		x.MissingBytes = max(0, left+p.Reserve-sp.Free)
	}
	if st := s.Status; s.Live && st != nil && st.Phase == store.PhaseExtract {
		x.TokensPerSecond, x.ETASeconds = st.Rate["tokens"], st.ETA
		x.EngineBusy, x.Top1, x.Gauges = st.Gauges["engine_busy"], st.Gauges["top1"], st.Gauges
		d.Waiting = st.Waiting
	}
	d.Extract = x
	return nil
}

// outcomes compares what was predicted of the sealed generations with what
// they took. Where the ledger is damaged the records may be missing.
func (d *statDoc) outcomes(s *store.Snapshot) (err error) {
	d.Outcomes = []plan.Outcome{}
	if d.Damage == "" {
		d.Outcomes, err = plan.Outcomes(s)
	}
	return err
}

// next says what to do now.
func (e *env) next(c *cli.Context, d *statDoc) string {
	if d.Damage != "" {
		return e.command(c, "check --full")
	}
	if d.Live {
		return "nothing: it is running"
	}
	for _, p := range d.Phases {
		switch p.State {
		case string(store.Stale):
			if d.outdated {
				return e.command(c, "run --redo shuffle") + " (datasets were merged since)"
			}
			return e.command(c, "run")
		case string(store.Blocked):
			return "decide: " + p.Error + "; 'eaglebatch run' prints the choices"
		case string(store.Failed):
			return e.command(c, "run") + " (" + p.Name + " failed: " + p.Error + ")"
		case string(store.Done):
		default:
			if p.Name != store.PhaseGC {
				return e.command(c, "run")
			}
		}
	}
	if d.Extract != nil && d.Extract.gone != "" {
		return d.Extract.gone + "; 'eaglebatch generations' lists what there is, " + e.command(c, "run --redo plan") + " computes what is missing"
	}
	if d.Extract != nil && d.Extract.Quarantined > 0 {
		return e.command(c, "extract --retry-quarantined")
	}
	return "nothing is left to do; " + e.command(c, "check --full") + " proves the states"
}

func (e *env) printStat(d *statDoc) error {
	fmt.Fprintf(e.out, "workspace  %s\n", d.Workspace)
	switch {
	case d.Live:
		fmt.Fprintf(e.out, "running    pid %d (%s) since %s, as of %s\n", d.Holder.PID, d.Holder.Command,
			d.Holder.Started.Local().Format("2006-01-02 15:04:05"), d.AsOf.Local().Format("15:04:05"))
	case d.LastRun != nil && !d.LastRun.Clean:
		fmt.Fprintf(e.out, "stopped    the last run ended without a clean shutdown at about %s\n", d.LastRun.At.Local().Format("2006-01-02 15:04:05"))
	case d.LastRun != nil:
		fmt.Fprintf(e.out, "stopped    the last command ended with exit %d at %s\n", d.LastRun.ExitCode, d.LastRun.At.Local().Format("2006-01-02 15:04:05"))
	}
	fmt.Fprintln(e.out)
	if err := e.printPhases(d); err != nil {
		return err
	}
	if len(d.Datasets) > 0 {
		fmt.Fprintln(e.out)
		if err := e.printStatDatasets(d); err != nil {
			return err
		}
	}
	e.printStatPlan(d)
	if len(d.Generations) > 0 {
		fmt.Fprintln(e.out)
		if err := e.printGenerations(d.Generations); err != nil {
			return err
		}
	}
	e.printOutcomes(d.Outcomes)
	for _, n := range d.Notes {
		fmt.Fprintf(e.out, "\nnote: %s\n", n)
	}
	if d.Waiting != "" {
		fmt.Fprintf(e.out, "\nwaiting for %s\n", d.Waiting)
	}
	fmt.Fprintf(e.out, "\nnext: %s\n", d.Next)
	return nil
}

func (e *env) printPhases(d *statDoc) error {
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "phase\tstate\tdone\ttook\tnote")
	for _, p := range d.Phases {
		done := human.Count(p.Done)
		if p.Unit == "bytes" {
			done = human.Bytes(p.Done)
		}
		if p.Total > 0 {
			done += fmt.Sprintf(" (%.0f%%)", 100*float64(p.Done)/float64(p.Total))
		}
		took := ""
		if p.Seconds > 0 {
			took = human.Duration(time.Duration(p.Seconds * float64(time.Second)))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.State, done, took, p.Error)
	}
	return w.Flush()
}

func (e *env) printStatDatasets(d *statDoc) error {
	w := tabwriter.NewWriter(e.out, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "dataset\tlines\taccepted\tduplicates\tblank\trejected\ttokens\tloss tokens\tlongest\t")
	for _, x := range d.Datasets {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", x.Name, human.Count(x.Lines), human.Count(x.Accepted), human.Count(x.Duplicates),
			human.Count(x.Blank), human.Count(x.Rejected), human.Count(x.Tokens), human.Count(x.LossTokens), human.Count(x.MaxTokens))
	}
	return w.Flush()
}

func (e *env) printStatPlan(d *statDoc) {
	if s := d.Shuffle; s != nil {
		fmt.Fprintf(e.out, "\nshuffle    %s, seed %d: %s positions", s.Algorithm, s.Seed, human.Count(s.N))
		if s.Eval > 0 {
			fmt.Fprintf(e.out, " and %s for eval", human.Count(s.Eval))
		}
	}
	if d.Shuffle != nil {
		fmt.Fprintln(e.out)
	}
	p := d.Plan
	if p == nil {
		return
	}
	fmt.Fprintf(e.out, "plan       %s samples, %s tokens; %s new, %s reused, %s repeated; dropped %s, over-length %s, emptied %s\n",
		human.Count(p.Samples), human.Count(p.Tokens), human.Count(p.NewSamples), human.Count(p.Reused), human.Count(p.Repeated),
		human.Count(p.Dropped), human.Count(p.OverLength), human.Count(p.Emptied))
	fmt.Fprintf(e.out, "           layers %v, %s, %s a token: %s raw, %s expected in %s",
		p.Layers, p.DType, human.Bytes(p.BytesPerToken), human.Bytes(p.RawBytes), human.Bytes(p.ExpectedBytes), human.Plural(p.Blobs, "blob"))
	if p.ExpectedSeconds != nil {
		fmt.Fprintf(e.out, ", %s", human.Duration(time.Duration(*p.ExpectedSeconds*float64(time.Second))))
	}
	fmt.Fprintf(e.out, "\n           %s (free %s, reserve %s)", p.Decision, human.Bytes(p.DiskFreeNow), human.Bytes(p.Reserve))
	if p.ShortBy > 0 {
		fmt.Fprintf(e.out, ", short by %s", human.Bytes(p.ShortBy))
	}
	fmt.Fprintln(e.out)
	if x := d.Extract; x != nil && x.SamplesTotal > 0 {
		fmt.Fprintf(e.out, "extract    %s of %s samples, %s quarantined, %s left", human.Count(x.SamplesDone), human.Count(x.SamplesTotal), human.Count(x.Quarantined), human.Count(x.Left))
		if x.TokensPerSecond > 0 {
			fmt.Fprintf(e.out, "; %s tok/s, engine busy %.0f%%, top-1 %.0f%%, ETA %s", human.Count(int64(x.TokensPerSecond)), 100*x.EngineBusy, 100*x.Top1,
				human.Duration(time.Duration(x.ETASeconds*float64(time.Second))))
		}
		if x.MissingBytes > 0 {
			fmt.Fprintf(e.out, "; %s of room is missing", human.Bytes(x.MissingBytes))
		}
		fmt.Fprintln(e.out)
		for _, s := range x.Slots {
			if len(x.Slots) > 1 || s.Endpoint != "" {
				fmt.Fprintf(e.out, "           %s: %s tok/s\n", cmp.Or(s.Endpoint, fmt.Sprintf("slot %d", s.Slot)), human.Count(int64(s.TokensPerSecond)))
			}
		}
	}
}
