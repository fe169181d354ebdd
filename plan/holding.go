package plan

import (
	"context"
	"errors"
	"slices"
	"strings"

	"eaglebatch/internal/progress"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// holding is what sealed generations of one identity hold of the distinct
// samples.
type holding struct {
	groups []*group
	from   []uint32 // the generations that hold any of it
}

// group is distinct samples of the same datasets of which the same is stored.
type group struct {
	sets []int // the datasets that show them
	// held is how many of their rows are stored: 0 none, whole all of them.
	held int64
	lengths
}

const whole = noCap

// lacks says whether samples that are cut at limit (0: nowhere) have to be
// computed: a stored prefix serves every shorter one.
func (g *group) lacks(limit int64) bool {
	if limit == 0 {
		limit = noCap
	}
	return g.held == 0 || limit > g.held
}

// membership remembers in which datasets each distinct sample is seen: a
// number a sample for one of the sets of datasets there are.
type membership struct {
	sets [][]int
	next map[[2]uint32]uint32 // set of datasets, dataset: the set with it
	of   []uint32             // by distinct sample
}

func newMembership() *membership {
	return &membership{sets: [][]int{nil}, next: map[[2]uint32]uint32{}}
}

func (m *membership) add(number uint32, set int) {
	if int(number) == len(m.of) {
		m.of = append(m.of, 0)
	}
	from := m.of[number]
	if slices.Contains(m.sets[from], set) {
		return
	}
	to, ok := m.next[[2]uint32{from, uint32(set)}]
	if !ok {
		to = uint32(len(m.sets))
		m.sets = append(m.sets, append(slices.Clone(m.sets[from]), set))
		m.next[[2]uint32{from, uint32(set)}] = to
	}
	m.of[number] = to
}

// identityKey is the same for identities with the same parts.
func identityKey(parts []store.Part) string {
	s := make([]string, len(parts))
	for i, p := range parts {
		s[i] = p.Key + "=" + p.Value
	}
	slices.Sort(s)
	return strings.Join(s, "\n")
}

// shapeParts are the parts of an identity that the alternatives vary.
func shapeParts() []string { return []string{"layers", "dtype", "rows"} }

// akin says that two identities differ in nothing but their shape.
func akin(a, b []store.Part) bool {
	rest := func(parts []store.Part) []store.Part {
		return slices.DeleteFunc(slices.Clone(parts), func(p store.Part) bool { return slices.Contains(shapeParts(), p.Key) })
	}
	return len(a) == len(b) && identityKey(rest(a)) == identityKey(rest(b))
}

// hold finds out what sealed generations hold, for each identity that an
// alternative of the plan may have.
func (p *planner) hold(ctx context.Context, r store.Reader, st *study, in *membership) error {
	gens, err := r.Generations()
	if err != nil {
		return err
	}
	st.holdings = map[string]*holding{}
	for _, g := range gens {
		key := identityKey(g.Identity)
		if st.holdings[key] != nil || !akin(g.Identity, p.o.Identity) {
			continue
		}
		o := p.o
		o.Identity = g.Identity
		if i := slices.IndexFunc(g.Identity, func(q store.Part) bool { return q.Key == "rows" }); i >= 0 {
			o.Rows = g.Identity[i].Value
		}
		if st.holdings[key], err = p.holdOne(ctx, r, reusable(gens, o), o.Rows, in); err != nil {
			return err
		}
	}
	st.nothing, err = p.holdOne(ctx, r, nil, "", in)
	return err
}

// holdOne groups the distinct samples by what the generations hold of them.
func (p *planner) holdOne(ctx context.Context, r store.Reader, gens []store.GenerationRow, rows string, in *membership) (h *holding, err error) {
	d := p.distinct
	h = &holding{}
	held := make([]uint32, d.len())
	defer func() { err = errors.Join(err, p.closeOlder()) }()
	err = p.stored(ctx, r, gens, rows, progress.Nop{}, func(number uint32, at storedAt, e blob.Entry) {
		need := d.row(number).Length
		if p.o.MaxTokens > 0 {
			need = uint32(min(int64(need), p.o.MaxTokens))
		}
		if !p.o.serves(e.Rows, min(e.Rows, need)) {
			return // it may serve an alternative, which is then promised more work than it is
		}
		held[number] = max(held[number], e.Rows)
		if id := p.older[at.source-1].id; !slices.Contains(h.from, id) {
			h.from = append(h.from, id)
		}
	})
	if err != nil {
		return nil, err
	}
	groups := map[[2]int64]*group{}
	for i := range held {
		row := d.row(uint32(i))
		key := [2]int64{int64(in.of[i]), int64(held[i])}
		if held[i] >= row.Length {
			key[1] = whole
		}
		g := groups[key]
		if g == nil {
			g = &group{sets: in.sets[in.of[i]], held: key[1]}
			groups[key] = g
			h.groups = append(h.groups, g)
		}
		g.add(row)
	}
	for _, g := range h.groups {
		g.seal()
	}
	return h, nil
}
