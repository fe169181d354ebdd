package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
)

// describe asks the engine what it is, as long as patience lasts, and holds it to
// the plan.
func (r *run) describe(ctx context.Context) error {
	began := time.Now()
	for wait := r.o.backoff; ; wait = min(2*wait, lastBackoff) {
		var err error
		if r.info, err = r.o.Backend.Describe(ctx); err == nil {
			break
		}
		left := r.o.Patience - time.Since(began)
		if !errors.Is(err, backend.ErrUnavailable) || left <= 0 {
			return err
		}
		r.rep.Waiting(fmt.Sprintf("the engine: %v", err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.o.Interrupt:
			return err
		case <-time.After(min(wait, left)):
		}
	}
	r.rep.Waiting("")
	if err := r.suits(); err != nil {
		return err
	}
	return r.longest()
}

// longest refuses a plan with samples that the engine will not take, unless so
// many may be missing.
func (r *run) longest() error {
	most := int64(r.info.MaxTokens)
	if most <= 0 {
		return nil
	}
	over, worst := int64(0), uint32(0)
	for no := range r.idx.Blobs() {
		for _, e := range r.idx.Entries(no) {
			if int64(e.Rows) > most {
				over++
				worst = max(worst, e.Rows)
			}
		}
	}
	if over > r.mayMiss() {
		return fmt.Errorf("%s takes at most %d tokens: %d planned samples are longer, up to %d: plan with max_tokens: %d, or start the engine with a larger bound",
			r.info.Engine, most, over, worst, most)
	}
	return nil
}

// suits compares what the engine says of itself with the plan.
func (r *run) suits() error {
	i, m := r.info, r.meta
	name := i.Engine + " " + i.Version
	switch {
	case i.Slots < 1:
		return fmt.Errorf("%s: %d slots", name, i.Slots)
	case i.Hidden != m.Hidden:
		return fmt.Errorf("%s: hidden size %d, the plan has %d", name, i.Hidden, m.Hidden)
	case !slices.Equal(i.Capture, m.Layers):
		return fmt.Errorf("%s: captures layers %v, the plan has %v", name, i.Capture, m.Layers)
	case i.DType != m.GivenDType():
		return fmt.Errorf("%s: gives %s, the plan has %s", name, i.DType, m.GivenDType())
	case i.Synthetic != m.Synthetic:
		return fmt.Errorf("%s: made-up values are %t, in the plan %t", name, i.Synthetic, m.Synthetic)
	case i.Layers == m.Layers[len(m.Layers)-1] && i.LastPreNorm != m.LastPreNorm:
		return fmt.Errorf("%s: last layer before the final norm is %t, in the plan %t", name, i.LastPreNorm, m.LastPreNorm)
	}
	return nil
}
