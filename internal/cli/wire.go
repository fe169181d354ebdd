package cli

import (
	"context"
	"fmt"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/native"
	"eaglebatch/extract/backend/synthetic"
	"eaglebatch/internal/config"
)

// newBackend makes the configured engine.
func (j *job) newBackend(ctx context.Context) (backend.Backend, error) {
	x := j.cfg.Extract
	dtype := j.cfg.Plan.DType
	switch x.Backend {
	case "native":
		return native.New(j.cfg.Model, native.Options{
			Capture: j.layers, DType: dtype, Compute: x.Compute, Threads: x.Threads, Memory: int64(x.Memory) / 2,
		})
	case "synthetic":
		return synthetic.New(synthetic.Options{
			Hidden: j.model.Hidden, Layers: j.model.Layers, Vocab: j.model.Vocab, Capture: j.layers, DType: dtype,
			Rate: x.Rate, Slots: max(1, x.Workers), Faults: x.Faults,
		})
	}
	return nil, fmt.Errorf("%w: extract.backend: %q is not known", config.ErrConfig, x.Backend)
}
