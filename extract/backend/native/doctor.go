package native

import (
	"context"
	"time"

	"eaglebatch/extract/model/kernel"
)

// KernelSpeed is what a family of kernels does on this machine, on one thread.
type KernelSpeed struct {
	Compute string  // fp32 or bf16
	Name    string  // as in Options.Kernels or Options.BF16
	GFLOPS  float64 // of a product of [96, 576] by [576, 1536], the shape of a small model
	Default bool    // the one that is used unless another is asked for
}

// Doctor measures every family of kernels that this CPU can run, the fastest
// expected first, for about a tenth of a second each.
func Doctor(ctx context.Context) ([]KernelSpeed, error) {
	var out []KernelSpeed
	sets, families := kernel.Sets(), kernel.BF16s()
	for i, s := range sets {
		out = append(out, KernelSpeed{Compute: "fp32", Name: s.Name(), GFLOPS: speed(arith{set: s}), Default: i == 0})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	for i, f := range families {
		out = append(out, KernelSpeed{Compute: "bf16", Name: f.Name(), GFLOPS: speed(arith{set: sets[0], bf16: f}), Default: i == 0})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func speed(a arith) float64 {
	const m, n, k = 96, 1536, 576
	arena := a.newArena(n * k)
	w := arena.take(n, k)
	x, c := make([]float32, m*k), make([]float32, m*n)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	l := a.left(x, k, m, k, a.newOperand(m*stride(k)))
	a.mul(c, n, l, w, false)
	runs, start := 0, time.Now()
	for runs == 0 || time.Since(start) < 100*time.Millisecond {
		a.mul(c, n, l, w, false)
		runs++
	}
	return 2 * m * n * k * float64(runs) / time.Since(start).Seconds() / 1e9
}
