package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"eaglebatch/internal/human"
	"eaglebatch/store/blob"
)

// Choice is one way out where a plan does not fit as it stands.
type Choice struct {
	Text   string `json:"text"`   // one line
	Accept string `json:"accept"` // what plan --accept records; "" where the way out is not a decision
	// LostTokens is what it costs in tokens beyond the plan in force.
	LostTokens int64 `json:"lost_tokens"`
	Bytes      int64 `json:"bytes"` // expected on disk
}

// capStep is what a computed cap is a multiple of.
const capStep = 256

// Choices computes the ways out of a plan that fits only after gc, or not at
// all: delete, cap, drop, store fp8, or give the volume more room. A plan that
// fits has none, nor one whose decision makes the room. Each is computed to fit,
// with the generations it names deleted.
func Choices(rep Report) []Choice {
	p := rep.Plan
	need := rep.left
	room, gc := rep.Room.spare(), rep.Room.Reclaimable
	var out []Choice
	if need <= room || rep.Room.Named > 0 && rep.Room.Enough() {
		return out
	}
	most := room + gc // what may be used by other ways out
	if need <= room+gc {
		most = room // deleting is enough: the others are for those who would rather not
		names, freed := rep.toDelete(need - room)
		out = append(out, Choice{Bytes: need, Accept: "gc=" + strings.Join(names, "+"),
			Text: fmt.Sprintf("delete %s (%s) and keep the plan as it is", strings.Join(names, ", "), human.Sized(freed))})
	} else {
		out = append(out, rep.expand(need-room-gc))
	}
	caps := rep.capChoices(p.Drop, "", room, most)
	out = append(out, caps...)
	for _, c := range rep.dropChoices(room, most) {
		if !slices.ContainsFunc(caps, c.worseThan) {
			out = append(out, c)
		}
	}
	if p.DType != "fp8" {
		if n := rep.fp8(); n <= most {
			out = append(out, rep.choice("store fp8 (lossy) instead of "+p.DType, []string{"dtype=fp8"}, n, 0))
		}
	}
	for i := range out {
		out[i].Accept = rep.withDecided(out[i].Accept)
	}
	return out
}

// withDecided adds to a new decision what stays of the one in force, which it
// replaces: all that it does not decide otherwise, but for deletions. Those
// that are needed it names itself.
func (rep *Report) withDecided(accept string) string {
	if accept == "" {
		return ""
	}
	pairs := strings.Split(accept, ",")
	for _, key := range acceptKeys() {
		v, ok := rep.decided[key]
		if !ok || key == "gc" || slices.ContainsFunc(pairs, func(p string) bool { return strings.HasPrefix(p, key+"=") }) {
			continue
		}
		if key == "layers" && v != "auto" {
			v = strings.ReplaceAll(strings.Trim(v, "[]"), ",", "+")
		}
		pairs = append(pairs, key+"="+v)
	}
	return strings.Join(pairs, ",")
}

// worseThan says that c deletes as o does and loses more.
func (c Choice) worseThan(o Choice) bool {
	return strings.Contains(c.Accept, "gc=") == strings.Contains(o.Accept, "gc=") && c.LostTokens >= o.LostTokens
}

func (rep *Report) expand(by int64) Choice {
	to := rep.Room.Total + by
	if s := rep.options.Reserve; s.Relative && s.Fraction < 1 {
		to = rep.Room.Total + int64(float64(by)/(1-s.Fraction)) + 1
	}
	c := Choice{Bytes: rep.Plan.ExpectedBytes, Text: fmt.Sprintf("give the volume %s more (%s in all), or free as much on it", human.Sized(to-rep.Room.Total), human.Sized(to))}
	if names, freed := rep.toDelete(rep.Room.Reclaimable); len(names) > 0 {
		c.Text += fmt.Sprintf(", and delete %s (%s)", strings.Join(names, ", "), human.Sized(freed))
	}
	return c
}

// toDelete names generations that free at least need bytes: first those that
// nothing needs anyway, then as few others as do.
func (rep *Report) toDelete(need int64) (names []string, freed int64) {
	from := slices.Clone(rep.Room.From)
	slices.SortStableFunc(from, func(a, b Reclaim) int {
		if a.Decision != b.Decision {
			if a.Decision {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.Bytes, a.Bytes)
	})
	for _, g := range from {
		if freed >= need {
			break
		}
		names, freed = append(names, g.ref()), freed+g.Bytes
	}
	return names, freed
}

// choice completes a way out with the generations to delete for it.
func (rep *Report) choice(text string, accept []string, bytes, lost int64) Choice {
	if over := bytes - rep.Room.spare(); over > 0 {
		names, freed := rep.toDelete(over)
		accept = append(accept, "gc="+strings.Join(names, "+"))
		text += fmt.Sprintf(", and delete %s (%s)", strings.Join(names, ", "), human.Sized(freed))
	}
	return Choice{Text: text, Accept: strings.Join(accept, ","), Bytes: bytes, LostTokens: max(0, lost)}
}

// ratio turns raw into expected bytes.
func (rep *Report) ratio() float64 {
	if rep.Plan.Ratio > 0 {
		return rep.Plan.Ratio
	}
	return 1
}

// expected is the expected size of the plan with another cap and other drops.
func (rep *Report) expected(limit int64, drop []string, overlong string) (bytes, tokens int64) {
	p := rep.Plan
	u := rep.use(limit, drop, p.Rows, overlong, rep.ownHolding())
	m := blob.Meta{Hidden: p.Hidden, DType: p.DType}
	raw := int64(m.RowBytes()) * (u.lastRows + int64(len(p.Layers)-1)*u.otherRows)
	return int64(rep.ratio() * float64(raw)), u.tokens
}

// capChoices finds the highest cap that fits into each room.
func (rep *Report) capChoices(drop []string, dropped string, rooms ...int64) []Choice {
	var out []Choice
	_, before := rep.expected(rep.Plan.MaxTokens, rep.Plan.Drop, rep.Plan.Overlong)
	cut := rep.cutting()
	found := map[int64]bool{0: true}
	for _, r := range rooms {
		limit := rep.fittingCap(r, drop)
		if found[limit] {
			continue
		}
		found[limit] = true
		bytes, tokens := rep.expected(limit, drop, cut)
		text := fmt.Sprintf("cap samples at %s tokens%s (%.1f%% of the planned tokens lost)", human.Count(limit), dropped, lossPercent(before, tokens))
		accept := []string{fmt.Sprintf("max_tokens=%d", limit)}
		if cut != rep.Plan.Overlong {
			accept = append(accept, "overlong="+cut)
		}
		if len(drop) > 0 {
			accept = append(accept, "drop="+strings.Join(drop, "+"))
		}
		out = append(out, rep.choice(text, accept, bytes, before-tokens))
	}
	return out
}

func lossPercent(before, after int64) float64 {
	if before == 0 {
		return 0
	}
	return 100 * float64(before-after) / float64(before)
}

// cutting is how a cap saves room: splitting, which keeps nearly every token,
// does not.
func (rep *Report) cutting() string {
	if rep.Plan.Overlong == Split {
		return Truncate
	}
	return rep.Plan.Overlong
}

// fittingCap is the highest multiple of capStep below the plan's own cap under
// which the plan fits into room; 0 where none does. More tokens are kept of
// every sample under a higher cap, so the search may halve.
func (rep *Report) fittingCap(room int64, drop []string) int64 {
	top := rep.Plan.MaxTokens
	for i := range rep.study.sets {
		if n := rep.study.sets[i].positions.length.max(); rep.Plan.MaxTokens == 0 && n > top {
			top = n
		}
	}
	if rep.Plan.Overlong == Split {
		top++ // truncating at the same cap is another plan
	}
	lo, hi := int64(0), (top-1)/capStep // in steps
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if bytes, tokens := rep.expected(mid*capStep, drop, rep.cutting()); bytes <= room && tokens > 0 {
			lo = mid
		} else if bytes <= room {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	if _, tokens := rep.expected(lo*capStep, drop, rep.cutting()); lo == 0 || tokens == 0 {
		return 0
	}
	return lo * capStep
}

// dropChoices finds single datasets without which the plan fits, the least
// loss first, and, where none is enough, the largest with a cap.
func (rep *Report) dropChoices(room, most int64) []Choice {
	_, before := rep.expected(rep.Plan.MaxTokens, rep.Plan.Drop, rep.Plan.Overlong)
	var out []Choice
	var largest DatasetReport
	for _, d := range rep.Datasets {
		if d.Dropped || len(rep.Datasets)-len(rep.Plan.Drop) < 2 {
			continue
		}
		if d.CapTokens > largest.CapTokens {
			largest = d
		}
		drop := append(slices.Clone(rep.Plan.Drop), d.Name)
		bytes, tokens := rep.expected(rep.Plan.MaxTokens, drop, rep.Plan.Overlong)
		if bytes <= most && tokens > 0 {
			out = append(out, rep.choice(fmt.Sprintf("drop %s (%.1f%% of the planned tokens lost)", d.Name, lossPercent(before, tokens)),
				[]string{"drop=" + strings.Join(drop, "+")}, bytes, before-tokens))
		}
	}
	slices.SortStableFunc(out, func(a, b Choice) int { return cmp.Compare(a.LostTokens, b.LostTokens) })
	if len(out) > 2 {
		out = out[:2]
	}
	if len(out) == 0 && largest.Name != "" {
		drop := append(slices.Clone(rep.Plan.Drop), largest.Name)
		out = rep.capChoices(drop, " and drop "+largest.Name, room, most)
	}
	return out
}

// fp8 is what the plan takes in fp8, in raw bytes.
func (rep *Report) fp8() int64 {
	p := rep.Plan
	u := rep.use(p.MaxTokens, p.Drop, p.Rows, p.Overlong, rep.study.nothing)
	return int64(blob.Meta{Hidden: p.Hidden, DType: "fp8"}.RowBytes()) * (u.lastRows + int64(len(p.Layers)-1)*u.otherRows)
}
