// Package retain judges, from the ledger alone, which generations something
// needs, which nothing needs, and which only a recorded decision may delete.
// The planner counts room by it and gc deletes by it, so that what one
// promises the other does.
//
// A generation is gone for good when its row is in state retired with an
// empty Path and no bytes: the row stays, since numbers are never reused.
package retain

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/store"
)

// Class is what may happen to a generation.
type Class string

// The classes.
const (
	Keep      Class = "keep"      // something needs it
	Free      Class = "free"      // nothing needs it: gc takes it
	Decide    Class = "decide"    // only a decision that names it may delete it
	Condemned Class = "condemned" // marked by a sweep that did not finish
	Trashed   Class = "trashed"   // in the trash: restorable, then unlinked
	Gone      Class = "gone"      // unlinked; only its row is left
)

// KindStates, KindSamples and KindProof are the kinds of generations.
const (
	KindStates  = "states"
	KindSamples = "samples"
	KindProof   = "proof"
)

// Adopted is the origin of a generation that was not made here.
const Adopted = "adopted"

// Options tells what is known beside the ledger.
type Options struct {
	Keep       int      // newest sealed generations of states that stay; at least one is kept unless NoFallback
	Names      []string // generations that a recorded decision deletes
	NoFallback bool     // understood: nothing newer is sealed
	PlanNeeds  []uint32 // generations that the plan in force points into
}

// Verdict is the judgement on one generation.
type Verdict struct {
	Generation store.GenerationRow
	Class      Class
	Reason     string
	// Named says that a decision names it, so that nothing newer needs to be
	// sealed first.
	Named bool
}

// IsGone says that nothing of the generation is left but its row.
func IsGone(g store.GenerationRow) bool { return g.State == store.GenRetired && g.Path == "" }

// ErrUnknown is matched by the error for a decision that names no generation.
var ErrUnknown = errors.New("no such generation")

// Find returns the generation with a name or a number.
func Find(gens []store.GenerationRow, name string) (store.GenerationRow, error) {
	for _, g := range slices.Backward(gens) {
		if g.Name == name && !IsGone(g) {
			return g, nil
		}
	}
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		for _, g := range gens {
			if uint64(g.ID) == n && !IsGone(g) {
				return g, nil
			}
		}
	}
	if wasThere(gens, name) {
		return store.GenerationRow{}, fmt.Errorf("%w any more: %q is deleted for good", ErrUnknown, name)
	}
	var names []string
	for _, g := range gens {
		if !IsGone(g) {
			names = append(names, g.Name)
		}
	}
	return store.GenerationRow{}, fmt.Errorf("%w: %q (there are: %s)", ErrUnknown, name, strings.Join(names, ", "))
}

// judge holds what the verdicts are computed from.
type judge struct {
	o        Options
	gens     []store.GenerationRow
	neededBy map[uint32]string
	samples  map[uint32]bool // samples generations in use
	maxUsed  uint32
	merging  bool
	newest   []uint32 // sealed generations of states, newest first
	named    map[uint32]bool
}

// Judge returns a verdict on each generation, by ID.
func Judge(r store.Reader, o Options) ([]Verdict, error) {
	j := &judge{o: o, neededBy: map[uint32]string{}, samples: map[uint32]bool{}, named: map[uint32]bool{}}
	var err error
	if j.gens, err = r.Generations(); err != nil {
		return nil, err
	}
	if err := j.collect(r); err != nil {
		return nil, err
	}
	out := make([]Verdict, 0, len(j.gens))
	for _, g := range j.gens {
		v := j.verdict(g)
		v.Generation, v.Named = g, j.named[g.ID]
		out = append(out, v)
	}
	return out, nil
}

func (j *judge) collect(r store.Reader) error {
	for _, id := range j.o.PlanNeeds {
		j.neededBy[id] = "the plan in force"
	}
	for _, g := range j.gens {
		if g.State == store.GenAbandoned || IsGone(g) {
			continue
		}
		for _, id := range g.Needs {
			j.neededBy[id] = fmt.Sprintf("the index of generation %d (%s)", g.ID, g.Name)
		}
	}
	for _, g := range slices.Backward(j.gens) {
		if g.State == store.GenSealed && g.Kind == KindStates && g.Origin != Adopted {
			j.newest = append(j.newest, g.ID)
		}
	}
	for _, name := range j.o.Names {
		if err := Known(j.gens, name); err != nil {
			return err
		}
		g, err := Find(j.gens, name)
		if errors.Is(err, ErrUnknown) {
			continue // the decision was carried out already
		}
		if err != nil {
			return err
		}
		j.named[g.ID] = true
	}
	sets, err := r.Datasets()
	if err != nil {
		return err
	}
	for _, d := range sets {
		j.samples[d.SamplesGen] = true
		j.maxUsed = max(j.maxUsed, d.SamplesGen)
	}
	merge, ok, err := r.Phase(store.PhaseMerge)
	j.merging = ok && merge.State != store.Done && merge.State != store.Pending
	return err
}

// Known fails with ErrUnknown where a name is neither that of a generation nor
// of one that is gone. Whoever asks for a deletion asks by it: what an earlier,
// interrupted attempt deleted already is no mistake.
func Known(gens []store.GenerationRow, name string) error {
	if _, err := Find(gens, name); err != nil && !wasThere(gens, name) {
		return err
	}
	return nil
}

func wasThere(gens []store.GenerationRow, name string) bool {
	return slices.ContainsFunc(gens, func(g store.GenerationRow) bool {
		return IsGone(g) && (g.Name == name || strconv.FormatUint(uint64(g.ID), 10) == name)
	})
}

func (j *judge) verdict(g store.GenerationRow) Verdict {
	switch {
	case IsGone(g):
		return Verdict{Class: Gone, Reason: "unlinked"}
	case g.State == store.GenTrashed:
		return Verdict{Class: Trashed, Reason: "in the trash"}
	case g.State == store.GenCondemned:
		return Verdict{Class: Condemned, Reason: "condemned by an unfinished sweep"}
	case g.Pinned != "":
		return Verdict{Class: Keep, Reason: "pinned: " + g.Pinned}
	case j.neededBy[g.ID] != "":
		return Verdict{Class: Keep, Reason: "needed by " + j.neededBy[g.ID]}
	case g.State == store.GenBuilding:
		return Verdict{Class: Keep, Reason: "being built"}
	case g.Kind == KindSamples:
		return j.samplesVerdict(g)
	case g.State == store.GenAbandoned:
		return Verdict{Class: Free, Reason: "abandoned"}
	case g.State == store.GenRetired:
		return Verdict{Class: Free, Reason: "retired"}
	case g.State == store.GenSealed:
		return j.sealedVerdict(g)
	}
	return Verdict{Class: Keep, Reason: fmt.Sprintf("in unknown state %q", g.State)}
}

func (j *judge) samplesVerdict(g store.GenerationRow) Verdict {
	no, err := strconv.ParseUint(filepath.Base(g.Path), 10, 32)
	if err != nil {
		return Verdict{Class: Keep, Reason: "its directory has no number"}
	}
	if ok, why := j.samplesInUse(uint32(no)); ok {
		return Verdict{Class: Keep, Reason: why}
	}
	return Verdict{Class: Free, Reason: "superseded samples"}
}

func (j *judge) samplesInUse(no uint32) (bool, string) {
	switch {
	case j.samples[no]:
		return true, "the merged samples"
	case j.merging && no >= j.maxUsed:
		return true, "a merge that is not finished may write it"
	}
	return false, ""
}

// SamplesInUse says whether samples generation no is needed, and by what. It
// serves directories that have no row.
func SamplesInUse(r store.Reader, no uint32) (bool, string, error) {
	j := &judge{neededBy: map[uint32]string{}, samples: map[uint32]bool{}, named: map[uint32]bool{}}
	if err := j.collect(r); err != nil {
		return true, "", err
	}
	use, why := j.samplesInUse(no)
	return use, why, nil
}

func (j *judge) sealedVerdict(g store.GenerationRow) Verdict {
	rank := slices.Index(j.newest, g.ID)
	keep := max(j.o.Keep, 0)
	switch {
	case j.named[g.ID]:
		return Verdict{Class: Free, Reason: "named for deletion"}
	case g.Origin == Adopted:
		return Verdict{Class: Decide, Reason: "adopted: deleted only when a decision names it"}
	case rank >= 0 && rank < keep:
		return Verdict{Class: Decide, Reason: fmt.Sprintf("among the newest %d", keep)}
	case j.o.NoFallback:
		return Verdict{Class: Free, Reason: "nothing needs it; no fallback wanted"}
	case len(j.newest) == 0 || j.newest[0] <= g.ID:
		return Verdict{Class: Decide, Reason: "nothing newer is sealed"}
	}
	return Verdict{Class: Free, Reason: fmt.Sprintf("superseded by generation %d", j.newest[0])}
}
