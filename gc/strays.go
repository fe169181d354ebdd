package gc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"eaglebatch/store"
	"eaglebatch/store/retain"
)

// StaleFile is a plan's index or an order that a later one replaced.
type StaleFile struct {
	Path  string `json:"path"` // within the workspace
	Bytes int64  `json:"bytes"`
}

// stale lists plans and orders older than those in force, which nothing reads
// any more but a generation that is still being built by them. They are
// made anew from the merged samples where they should ever be wanted.
func (p *planning) stale(s *Sweep) error {
	if len(p.o.Names) > 0 {
		return nil
	}
	plan, ok, err := p.r.Plan()
	if err != nil || !ok {
		return err
	}
	plans, orders := map[uint32]bool{plan.ID: true}, map[uint32]bool{plan.Order: true}
	order, ok, err := p.r.Order()
	if err != nil {
		return err
	}
	if !ok {
		order.ID = plan.Order
	}
	orders[order.ID] = true
	for _, g := range p.gens {
		if g.State == store.GenBuilding && g.Plan != 0 {
			row, _, err := p.r.PlanByID(g.Plan)
			if err != nil {
				return err
			}
			plans[g.Plan], orders[row.Order] = true, true
		}
	}
	ws := p.site.ws
	return errors.Join(p.staleIn(s, ws.PlanPath(plan.ID), plan.ID, plans), p.staleIn(s, ws.OrderPath(order.ID), order.ID, orders))
}

// staleIn lists the files beside the one of number now that have lower numbers
// and are not in use.
func (p *planning) staleIn(s *Sweep, current string, now uint32, used map[uint32]bool) error {
	dir, ext := filepath.Dir(current), filepath.Ext(current)
	ents, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range ents {
		base, ok := strings.CutSuffix(e.Name(), ext)
		n, err := strconv.ParseUint(base, 10, 32)
		if !ok || err != nil || !e.Type().IsRegular() || uint32(n) >= now || used[uint32(n)] {
			continue
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		s.Stale = append(s.Stale, StaleFile{Path: filepath.Join(filepath.Base(dir), e.Name()), Bytes: st.Size()})
	}
	return nil
}

// strays looks for directories where generations lie that have no row. Samples
// that a later merge replaced are reclaimable; anything else is reported and
// left alone.
func (p *planning) strays(s *Sweep) error {
	known := map[string]bool{}
	for _, g := range p.gens {
		known[filepath.Clean(g.Path)] = true
	}
	for _, dir := range []string{generationsDir, samplesDir} {
		ents, err := os.ReadDir(filepath.Join(p.site.root, dir))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range ents {
			rel := filepath.Join(dir, e.Name())
			if known[rel] {
				continue
			}
			n, err := strconv.ParseUint(e.Name(), 10, 32)
			if err != nil || dir != samplesDir || len(e.Name()) < 6 {
				s.Unknown = append(s.Unknown, rel)
				continue
			}
			if err := p.straySamples(s, rel, uint32(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *planning) straySamples(s *Sweep, rel string, no uint32) error {
	use, why, err := retain.SamplesInUse(p.r, no)
	if err != nil {
		return err
	}
	g := store.GenerationRow{Name: fmt.Sprintf("samples-%06d", no), Origin: "made", State: store.GenRetired, Kind: retain.KindSamples, Path: rel}
	it := Item{Generation: g, Action: ActionTrash, Now: p.o.Now, Reason: "superseded samples"}
	if use || len(p.o.Names) > 0 {
		it.Action, it.Now, it.Reason = ActionKeep, false, why
		s.Items = append(s.Items, it)
		return nil
	}
	if it, err = p.inspect(it); err != nil {
		return err
	}
	s.Items = append(s.Items, it)
	return nil
}
