package ingest

import (
	"bytes"
	"slices"
)

// supervision finds the mask: loss_mask, else labels, else everything behind
// the prompt.
func (r *record) supervision(ids []uint32, n int) verdict {
	r.mask = r.mask[:0]
	switch {
	case r.loss.given():
		return r.lossMask(len(ids), n)
	case r.labels.given():
		if r.labels.kind == numbers && !r.labels.misshapen() && len(r.labels.v) == len(ids) {
			for _, l := range r.labels.v {
				r.mask = append(r.mask, byte(b2i(int32(l) != ignoreLabel)))
			}
		}
		return verdict{} // checkLabels says what is wrong with them
	case len(r.segs) > 0:
		prompt := 0
		if r.segs[0].Kind == "prompt" {
			prompt = min(int(r.segs[0].End), n)
		}
		r.mask = append(r.mask, make([]byte, n)...)
		for i := prompt; i < n; i++ {
			r.mask[i] = 1
		}
		return verdict{}
	}
	return reject(reasonMissing, "neither loss_mask nor labels")
}

func (r *record) lossMask(all, n int) verdict {
	m := &r.loss
	if v := checkList("loss_mask", &m.array); v.reason != "" {
		return v
	}
	if len(m.m) != all {
		return reject(reasonLength, "%d ids but %d loss_mask values", all, len(m.m))
	}
	if i := m.firstBad(); i < n {
		return reject(reasonMask, "loss_mask at token %d is neither 0 nor 1", i)
	}
	if i := bytes.IndexByte(m.m[n:], 1); i >= 0 {
		return reject(reasonPadding, "token %d is padding by attention_mask but supervised by loss_mask", n+i)
	}
	r.mask = append(r.mask, m.m...)
	return verdict{}
}

// checkLabels compares labels, where there are any, with the ids: each must be
// -100 or the id at its own place. ids are the unpadded ones.
func (r *record) checkLabels(ids []uint32) verdict {
	a := &r.labels
	if !a.given() {
		return verdict{}
	}
	if v := checkList("labels", a); v.reason != "" {
		return v
	}
	n, all := len(ids), len(r.inputIDs.v)
	if len(a.v) != all {
		return reject(reasonLength, "%d ids but %d labels", all, len(a.v))
	}
	if i := min(a.bad, a.bools); i < n {
		return reject(reasonLabels, "the label at token %d is no id", i)
	}
	for i := n; i < all; i++ {
		if int32(a.v[i]) != ignoreLabel && !r.loss.given() {
			return reject(reasonPadding, "token %d is padding by attention_mask but has a label", i)
		}
	}
	for i, l := range a.v[:n] {
		if int32(l) == ignoreLabel || l == ids[i] {
			continue
		}
		if shifted(ids, a.v[:n]) {
			return reject(reasonShifted, "labels[t] is input_ids[t+1]: labels must be at the place of their token, not one before it")
		}
		return reject(reasonLabels, "the label at token %d is %d, the id is %d", i, int32(l), ids[i])
	}
	return verdict{}
}

// checkBoth compares loss_mask with labels where a line has both. Trainers read
// one of the two and not the other, so that nobody can tell which was meant where
// they differ. Labels that leave nothing out are the copy of the ids that causal
// models take, beside which loss_mask alone says what is supervised.
func (r *record) checkBoth(n int) verdict {
	if !r.loss.given() || !r.labels.given() {
		return verdict{}
	}
	labels, ignored := r.labels.v[:n], int32(ignoreLabel)
	if !slices.Contains(labels, uint32(ignored)) {
		return verdict{}
	}
	for i, l := range labels {
		switch supervised := r.mask[i] == 1; {
		case supervised && int32(l) == ignoreLabel:
			return reject(reasonContradicted, "token %d: loss_mask is 1, labels has -100: take the wrong one of the two fields out of the source", i)
		case !supervised && int32(l) != ignoreLabel:
			return reject(reasonContradicted, "token %d: loss_mask is 0, labels has the id %d: take the wrong one of the two fields out of the source", i, l)
		}
	}
	return verdict{}
}

// shifted says that labels are the ids moved by one place to the left. The
// last label has no id to compare with.
func shifted(ids, labels []uint32) bool {
	seen := false
	for t := 0; t+1 < len(ids); t++ {
		if int32(labels[t]) == ignoreLabel {
			continue
		}
		if labels[t] != ids[t+1] {
			return false
		}
		seen = true
	}
	return seen
}
