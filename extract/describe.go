package extract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"eaglebatch/extract/backend"
)

// describe asks the engine what it is, as long as patience lasts, and compares
// that with the plan.
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
	i, m := r.info, r.meta
	name := i.Engine + " " + i.Version
	switch {
	case i.Slots < 1:
		return fmt.Errorf("%s: %d slots", name, i.Slots)
	case i.Hidden != m.Hidden:
		return fmt.Errorf("%s: hidden size %d, the plan has %d", name, i.Hidden, m.Hidden)
	case !slices.Equal(i.Capture, m.Layers):
		return fmt.Errorf("%s: captures layers %v, the plan has %v", name, i.Capture, m.Layers)
	case i.DType != m.DType:
		return fmt.Errorf("%s: gives %s, the plan has %s", name, i.DType, m.DType)
	case i.Synthetic != m.Synthetic:
		return fmt.Errorf("%s: made-up values are %t, in the plan %t", name, i.Synthetic, m.Synthetic)
	case i.Layers == m.Layers[len(m.Layers)-1] && i.LastPreNorm != m.LastPreNorm:
		return fmt.Errorf("%s: last layer before the final norm is %t, in the plan %t", name, i.LastPreNorm, m.LastPreNorm)
	}
	return nil
}
