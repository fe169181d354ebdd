package plan

import (
	"context"
	"errors"
	"maps"
	"slices"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
)

// ProofFit says how large a proof there is room for.
type ProofFit struct {
	Samples int64 // the first so many planned ones fit
	Least   int64 // what the fewest asked for take, with all that is beside the states
	Room    int64 // what is free above the reserve now, without anything being deleted
}

// FitProof finds out how many of the first want samples of a plan fit into the
// room there is, in raw bytes: what the codec makes of them is what a proof is to
// show, and it must not end for the want of room. least is how many are of use at
// all.
func FitProof(ctx context.Context, ws *store.Workspace, o Options, want, least int64) (fit ProofFit, err error) {
	if o, err = o.withDefaults(); err != nil {
		return fit, err
	}
	o.Limit = want
	err = ws.View(func(r store.Reader) error {
		p, err := newPlanner(ws, r, o)
		if err != nil {
			return err
		}
		return errors.Join(p.fitProof(ctx, r, want, least, &fit), p.Close())
	})
	return fit, err
}

func (p *planner) fitProof(ctx context.Context, r store.Reader, want, least int64, fit *ProofFit) error {
	if err := p.survey(ctx, r, progress.Nop{}); err != nil {
		return err
	}
	room, err := MeasureRoom(p.c.ws, r, p.o.Reserve, p.o.GCNames, slices.Sorted(maps.Keys(p.needs)))
	if err != nil {
		return err
	}
	fit.Room = max(0, room.spare())
	s, err := newSelector(p.c, p.o, p.w)
	if err != nil {
		return err
	}
	seen := map[uint32]bool{}
	var n, raw int64
	return s.pass(ctx, func(_ place, q piece) error {
		_, number, _ := p.distinct.find(p.distinct.key(q.row))
		if !seen[number] && p.distinct.source[number] == 0 {
			raw += p.shape.bytes(p.distinct.row(number), p.distinct.need[number]) + proofExtra
		}
		seen[number] = true
		n++
		need := raw + beside(p.o, n)
		need += max(proofSlack, need/100)
		if n <= least {
			fit.Least = need
		}
		if need <= fit.Room && fit.Samples == n-1 {
			fit.Samples = n
		}
		return nil
	}, nil)
}

// proofExtra is what an entry takes in a blob beside its rows: headers and
// checksums of chunks.
const proofExtra = 1 << 10

// proofSlack is what plan, ledger and the ends of files take beside a small
// proof: it must not fail for the want of a few blocks.
const proofSlack = 256 << 10
