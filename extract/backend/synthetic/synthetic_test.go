package synthetic

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/backendtest"
)

func small() Options {
	return Options{Hidden: 30, Layers: 8, Vocab: 500, Capture: []int{0, 2, 5, 8}, Slots: 3, ChunkRows: 32, MaxTokens: 2000}
}

func mustNew(t testing.TB, o Options) *Backend {
	t.Helper()
	b, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		for _, faults := range []string{"", "out-of-order"} {
			t.Run(dtype+" "+faults, func(t *testing.T) {
				o := small()
				o.DType, o.Faults = dtype, faults
				backendtest.Run(t, backendtest.Factory{
					New: func(t *testing.T) backend.Backend { return mustNew(t, o) },
					WithCapture: func(t *testing.T, layers []int) backend.Backend {
						o := o
						o.Capture = layers
						return mustNew(t, o)
					},
					Faulty: func(t *testing.T, f backendtest.Fault) backend.Backend {
						o := small()
						o.DType = dtype
						o.Faults = map[backendtest.Fault]string{
							backendtest.Dies: "die@3", backendtest.Refuses: "flaky@3", backendtest.Down: "unavailable",
						}[f]
						return mustNew(t, o)
					},
					Timeout: 30 * time.Second,
				})
			})
		}
	}
}

// TestStatistics holds the made-up values to the figures measured on real
// activations: 3.15 bits of entropy in a bf16 exponent.
func TestStatistics(t *testing.T) {
	v := newValues(4096, []int{30}, "bf16", 1)
	buf, state := make([]byte, v.tokenBytes()), v.start()
	var hist [256]float64
	n := 0.0
	for id := range uint32(200) {
		state = v.next(state, id)
		v.row(buf, state)
		for i := 0; i < len(buf); i += 2 {
			hist[buf[i+1]<<1|buf[i]>>7]++
			n++
		}
	}
	bits := 0.0
	for _, c := range hist {
		if c > 0 {
			bits -= c / n * math.Log2(c/n)
		}
	}
	if bits < 2.8 || bits > 3.5 {
		t.Errorf("%.2f bits in the exponents, real states have about 3.15", bits)
	}
	if hist[0] != 0 || hist[255] != 0 {
		t.Errorf("%v zeros or subnormals, %v infinities or NaN", hist[0], hist[255])
	}
}

func TestSeedChangesValues(t *testing.T) {
	a, b := newValues(16, []int{2}, "bf16", 1), newValues(16, []int{2}, "bf16", 2)
	x, y := make([]byte, 32), make([]byte, 32)
	a.row(x, a.next(a.start(), 5))
	b.row(y, b.next(b.start(), 5))
	if string(x) == string(y) {
		t.Error("two seeds give the same row")
	}
}

func TestRefusesBadOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no hidden":      func(o *Options) { o.Hidden = 0 },
		"no layers":      func(o *Options) { o.Capture = nil },
		"layer beyond":   func(o *Options) { o.Capture = []int{2, 9} },
		"descending":     func(o *Options) { o.Capture = []int{5, 2} },
		"dtype":          func(o *Options) { o.DType = "fp8" },
		"unknown fault":  func(o *Options) { o.Faults = "explode" },
		"unknown @fault": func(o *Options) { o.Faults = "explode@3" },
		"no number":      func(o *Options) { o.Faults = "die@x" },
		"zeroth":         func(o *Options) { o.Faults = "die@0" },
		"slow":           func(o *Options) { o.Faults = "slow=1" },
		"poison":         func(o *Options) { o.Faults = "poison=x" },
		"down":           func(o *Options) { o.Faults = "down=0" },
	} {
		o := small()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestDownServes(t *testing.T) {
	o := small()
	o.Faults = "down=2"
	b := mustNew(t, o)
	in := make(chan backend.Request)
	close(in)
	for i := range 3 {
		err := b.Serve(context.Background(), 0, in, func(backend.Chunk) error { return nil })
		if want := i < 2; errors.Is(err, backend.ErrUnavailable) != want {
			t.Errorf("call %d: %v", i+1, err)
		}
	}
}

// BenchmarkRows prints how much faster a copy of the same bytes is.
func BenchmarkRows(b *testing.B) {
	v := newValues(7168, []int{2, 30, 58, 61}, "bf16", 1)
	buf := make([]byte, 32*v.tokenBytes())
	state := v.start()
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		for i := range 32 {
			state = v.next(state, uint32(i))
			v.row(buf[i*v.tokenBytes():], state)
		}
	}
	b.StopTimer()
	made := b.Elapsed()
	src := make([]byte, len(buf))
	start := time.Now()
	for range b.N {
		copy(buf, src)
	}
	b.ReportMetric(float64(made)/float64(time.Since(start)), "times-memcpy")
}
