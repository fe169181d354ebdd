package ingest

import (
	"bytes"
	"fmt"
	"math"

	"eaglebatch/store/samples"
)

// The reasons for which a line is rejected, as they are counted and kept.
const (
	reasonMalformed    = "malformed"       // not one JSON object, or token lists of another shape
	reasonTooLong      = "too_long_line"   // longer than MaxLine
	reasonMissing      = "missing_field"   // no ids, or nothing that says what is supervised
	reasonText         = "not_tokenized"   // text where token ids should be
	reasonEmpty        = "empty"           // no tokens
	reasonToken        = "bad_token"       // an id that is none of the vocabulary
	reasonLength       = "length_mismatch" // mask, labels or attention_mask of another length than the ids
	reasonMask         = "bad_mask"        // a mask value that is neither 0 nor 1
	reasonPadding      = "bad_padding"     // attention_mask names padding that is not at the end, or supervised
	reasonShifted      = "shifted_labels"  // labels are the ids moved by one
	reasonLabels       = "label_mismatch"  // labels that are neither -100 nor the id
	reasonContradicted = "mask_contradicts_labels"
	reasonUnsupervised = "no_supervised_tokens" // nothing to learn from
	reasonFewLoss      = "few_supervised_tokens"
)

// ignoreLabel is the label of a token that is not supervised.
const ignoreLabel = -100

// verdict says why a line is rejected; its zero value accepts.
type verdict struct{ reason, message string }

func reject(reason, format string, args ...any) verdict {
	return verdict{reason, fmt.Sprintf(format, args...)}
}

// limits are the options that a verdict depends on.
type limits struct {
	vocab   int
	minLoss int
}

// part is one of the token lists that a record may be split into; the store's
// name for it first, then the names it has in sources.
type part struct {
	kind  string
	names [2]string
}

func parts() [4]part {
	return [4]part{
		{"prompt", [2]string{"prompt", ""}},
		{"reasoning", [2]string{"reasoning", "think"}},
		{"response", [2]string{"response", "resp"}},
		{"tool_calls", [2]string{"tool_calls", "tool"}},
	}
}

// record reads lines into its buffers, which are reused: ids, loss and segs
// are valid until the next line.
type record struct {
	lim   limits
	parts [4]part
	s     scanner
	hash  *samples.Hasher

	id        []byte
	inputIDs  array
	partIDs   [4][2]array
	loss      mask
	attention mask
	labels    array

	ids  []uint32
	mask []byte
	segs []samples.Segment
}

func newRecord(l limits) *record { return &record{lim: l, parts: parts(), hash: samples.NewHasher()} }

func (r *record) reset() {
	r.id = nil
	r.inputIDs.reset()
	for i := range r.partIDs {
		r.partIDs[i][0].reset()
		r.partIDs[i][1].reset()
	}
	r.loss.array.reset()
	r.attention.array.reset()
	r.loss.m, r.attention.m = r.loss.m[:0], r.attention.m[:0]
	r.labels.reset()
	r.segs = r.segs[:0]
}

// parse reads the line buf[start:end]; pad readable bytes follow it.
func (r *record) parse(buf []byte, start, end int) verdict {
	r.reset()
	r.s.reset(buf, start, end)
	r.s.space()
	if r.s.object(r.field) {
		if r.s.space(); r.s.i != end {
			r.s.fail("more after the object")
		}
	}
	if r.s.err != "" {
		return reject(reasonMalformed, "byte %d of the line: %s", r.s.at-start, r.s.err)
	}
	return r.judge()
}

func (r *record) field(key []byte) bool {
	switch string(key) {
	case "input_ids":
		return r.s.array(&r.inputIDs)
	case "loss_mask":
		return r.s.mask(&r.loss)
	case "attention_mask":
		return r.s.mask(&r.attention)
	case "labels":
		return r.s.array(&r.labels)
	case "id":
		return r.readID()
	}
	for i, p := range r.parts {
		for j, name := range p.names {
			if string(key) == name {
				return r.s.array(&r.partIDs[i][j])
			}
		}
	}
	return r.s.skip()
}

// readID takes text as it is and numbers as they are written; anything else
// is no id.
func (r *record) readID() (ok bool) {
	from := r.s.i
	switch c := r.s.buf[from]; {
	case c == '"':
		r.id, ok = r.s.str()
		return ok
	case c == '-' || c-'0' <= 9:
		ok = r.s.number()
		r.id = r.s.buf[from:r.s.i]
		return ok
	}
	r.id = nil
	return r.s.skip()
}

// judge decides on a well-formed object, and leaves what is to be stored in
// ids, mask and segs.
func (r *record) judge() verdict {
	src, v := r.tokens()
	if v.reason != "" {
		return v
	}
	n, v := r.unpadded(len(src.v))
	if v.reason != "" {
		return v
	}
	if n == 0 {
		return reject(reasonEmpty, "no tokens")
	}
	if v := r.checkIDs(src, n); v.reason != "" {
		return v
	}
	if v := r.supervision(src.v, n); v.reason != "" {
		return v
	}
	if v := r.checkLabels(src.v[:n]); v.reason != "" {
		return v
	}
	if v := r.checkBoth(n); v.reason != "" {
		return v
	}
	r.ids, r.mask = src.v[:n], r.mask[:n]
	for i := range r.segs {
		r.segs[i].End = min(r.segs[i].End, uint32(n))
	}
	switch loss := bytes.Count(r.mask, []byte{1}); {
	case loss == 0 && r.lim.minLoss > 0:
		return reject(reasonUnsupervised, "none of %d tokens is supervised", n)
	case loss < r.lim.minLoss:
		return reject(reasonFewLoss, "%d supervised tokens; min_loss_tokens is %d", loss, r.lim.minLoss)
	}
	return verdict{}
}

// tokens returns the record's ids: input_ids, or its parts in order.
func (r *record) tokens() (*array, verdict) {
	if !r.inputIDs.given() {
		return r.join()
	}
	return &r.inputIDs, checkList("input_ids", &r.inputIDs)
}

func checkList(name string, a *array) verdict {
	switch {
	case a.kind == text:
		return reject(reasonText, "%s is text, not token ids", name)
	case a.kind == other:
		return reject(reasonMalformed, "%s is no list", name)
	case a.misshapen():
		return reject(reasonMalformed, "%s is neither a list of numbers nor one such list in a list", name)
	}
	return verdict{}
}

// join concatenates the parts into one array and notes where each ends.
func (r *record) join() (*array, verdict) {
	dst := &r.inputIDs
	dst.v = dst.v[:0]
	for i, p := range r.parts {
		a := &r.partIDs[i][0]
		if alias := &r.partIDs[i][1]; alias.given() && len(alias.v)+b2i(alias.kind != numbers) > 0 {
			if len(a.v) > 0 {
				return nil, reject(reasonMalformed, "both %s and %s are given", p.names[0], p.names[1])
			}
			a = alias
		}
		if i == 0 && !a.given() {
			return nil, reject(reasonMissing, "neither input_ids nor prompt")
		}
		if v := checkList(p.kind, a); v.reason != "" {
			return nil, v
		}
		if a.bad != math.MaxInt && dst.bad == math.MaxInt {
			dst.bad, dst.what = len(dst.v)+a.bad, a.what
		}
		if a.bools != math.MaxInt {
			dst.bools = min(dst.bools, len(dst.v)+a.bools)
		}
		if len(a.v) == 0 {
			continue
		}
		dst.v = append(dst.v, a.v...)
		r.segs = append(r.segs, samples.Segment{Kind: p.kind, End: uint32(len(dst.v))})
	}
	return dst, verdict{}
}

// unpadded returns how many of n tokens are left when the padding that
// attention_mask names is gone.
func (r *record) unpadded(n int) (int, verdict) {
	a := &r.attention
	if !a.given() {
		return n, verdict{}
	}
	if v := checkList("attention_mask", &a.array); v.reason != "" {
		return 0, v
	}
	if len(a.m) != n {
		return 0, reject(reasonLength, "%d ids but %d attention_mask values", n, len(a.m))
	}
	if i := a.firstBad(); i < n {
		return 0, reject(reasonPadding, "attention_mask at token %d is neither 0 nor 1", i)
	}
	kept := bytes.LastIndexByte(a.m, 1) + 1
	if i := bytes.IndexByte(a.m[:kept], 0); i >= 0 {
		return 0, reject(reasonPadding, "attention_mask is 0 at token %d and 1 at token %d: padding may only be at the end", i, kept-1)
	}
	return kept, verdict{}
}

// checkIDs judges the first n ids.
func (r *record) checkIDs(a *array, n int) verdict {
	bad := min(a.bad, a.bools)
	for i, id := range a.v[:min(n, bad)] {
		if id >= uint32(r.lim.vocab) {
			return reject(reasonToken, "token %d is %d; the vocabulary has ids 0 to %d", i, int32(id), r.lim.vocab-1)
		}
	}
	switch {
	case bad >= n:
		return verdict{}
	case a.bools < a.bad:
		return reject(reasonToken, "token %d is a boolean", bad)
	}
	return reject(reasonToken, "token %d is %s, which is no id", bad, a.what)
}
