package synthetic

import (
	"fmt"
	"strconv"
	"strings"
)

// script is a parsed Options.Faults: items separated by commas. N counts
// requests from 1 as their computation begins, over all slots and for the life
// of the Backend, the caller's canaries included.
//
//	die@N          the engine dies, everything in flight is lost
//	hang@N         the slot answers nothing any more until it is cancelled
//	lost@N         this request is never answered; the others are
//	short@N        the last chunk holds one row less than it says
//	wrong-ids@N    the echo differs in its last token
//	nan@N          one value is NaN
//	zero-row@N     one layer's row is all zero
//	dup@N          the request is answered twice
//	stray@N        an answer to a request that was never made comes first
//	flaky@N        a SampleError that trying again cures
//	drift@N        the engine dies and comes back with other values
//	poison=TOKEN   the engine dies at every sample that contains the token
//	refuse=TOKEN   every sample that contains the token is refused
//	slow=SLOT:F    the slot computes F times as long (needs Rate)
//	out-of-order   answers come in another order than requests
//	down=K         the first K calls of Serve fail
//	unavailable    the engine is never there
type script struct {
	at         map[int64][]string
	poison     map[uint32]bool
	refuse     map[uint32]bool
	slow       map[int]float64
	outOfOrder bool
	downServes int64
	down       bool
}

func parseScript(s string) (script, error) {
	sc := script{at: map[int64][]string{}, poison: map[uint32]bool{}, refuse: map[uint32]bool{}, slow: map[int]float64{}}
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if err := sc.add(item); err != nil {
			return script{}, fmt.Errorf("synthetic: fault %q: %w", item, err)
		}
	}
	return sc, nil
}

func (sc *script) add(item string) error {
	if name, n, ok := strings.Cut(item, "@"); ok {
		return sc.addAt(name, n)
	}
	name, arg, _ := strings.Cut(item, "=")
	switch name {
	case "poison", "refuse":
		id, err := strconv.ParseUint(arg, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is no token id", arg)
		}
		if name == "poison" {
			sc.poison[uint32(id)] = true
		} else {
			sc.refuse[uint32(id)] = true
		}
	case "slow":
		slot, factor, _ := strings.Cut(arg, ":")
		i, err1 := strconv.Atoi(slot)
		f, err2 := strconv.ParseFloat(factor, 64)
		if err1 != nil || err2 != nil || i < 0 || !(f > 0) {
			return fmt.Errorf("want slow=SLOT:FACTOR")
		}
		sc.slow[i] = f
	case "down":
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("want down=CALLS")
		}
		sc.downServes = n
	case "out-of-order":
		sc.outOfOrder = true
	case "unavailable":
		sc.down = true
	default:
		return fmt.Errorf("no such fault")
	}
	return nil
}

func (sc *script) addAt(name, n string) error {
	switch name {
	case "die", "hang", "lost", "short", "wrong-ids", "nan", "zero-row", "dup", "stray", "flaky", "drift":
	default:
		return fmt.Errorf("no such fault")
	}
	at, err := strconv.ParseInt(n, 10, 64)
	if err != nil || at < 1 {
		return fmt.Errorf("%q is no request number", n)
	}
	sc.at[at] = append(sc.at[at], name)
	return nil
}

func anyOf(set map[uint32]bool, ids []uint32) bool {
	if len(set) == 0 {
		return false
	}
	for _, id := range ids {
		if set[id] {
			return true
		}
	}
	return false
}
