package extract

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model"
	"eaglebatch/internal/human"
	"eaglebatch/store"
)

// Options configures an extraction.
type Options struct {
	Backend        backend.Backend
	Head           *model.Head   // for the sense check and target_head.safetensors; nil: neither
	MinTop1        float64       // least share of next tokens ranked first, below it the run stops; 0: only counted
	Memory         int64         // bytes; 0: 1 GiB
	Threads        int           // encoders; 0: all cores
	MaxQuarantined human.Share   // of the samples planned, those that older generations hold included
	Reserve        human.Share   // of the volume, kept free
	Limit          int64         // stop once so many positions are done; 0: none
	Until          time.Time     // hand out no blob after it; zero: never
	Patience       time.Duration // without any sample while engines fail and none is at work; 0: 5 minutes
	// Stall is how long a slot with requests in flight may stay silent before it
	// is taken for dead; 0: ten minutes, an hour before its first answer, and
	// never less than ten times its slowest answer.
	Stall       time.Duration
	CanaryEvery time.Duration   // 0: an hour
	Grace       time.Duration   // for open blobs after an interrupt; 0: a minute
	Interrupt   <-chan struct{} // closed at the first SIGINT/SIGTERM: finish the open blobs
	Name        string          // of the generation; "": gen-NNNNNN
	Kind        string          // of the generation; "": the plan's, or states
	Identity    []store.Part    // what must agree for another generation to use the states; nil: the plan's

	silence time.Duration // without an answer, after which an idle slot takes over; 0: ten seconds
	backoff time.Duration // before the first retry; 0: a quarter of a second
	scoring time.Duration // that the sense check may take before it is held to its share of a core; 0: two seconds
}

func (o Options) withDefaults() (Options, error) {
	if o.Backend == nil {
		return o, errors.New("extract: no backend")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Patience, 5*time.Minute)
	def(&o.CanaryEvery, time.Hour)
	def(&o.Grace, time.Minute)
	def(&o.silence, 10*time.Second)
	def(&o.backoff, 250*time.Millisecond)
	def(&o.scoring, freeScoring)
	if o.Memory <= 0 {
		o.Memory = 1 << 30
	}
	if o.Memory < 32<<20 {
		return o, fmt.Errorf("extract: memory of %s is too little: want at least 32 MiB", human.Bytes(o.Memory))
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	return o, nil
}

// Result is the outcome.
type Result struct {
	Generation store.GenerationRow
	Sealed     bool
	Stopped    bool // by Limit, Until or Interrupt: run again to go on
}

var (
	// ErrNonsense: the engine answers, but its states cannot be those of the
	// model asked for. It matches backend.ErrUnavailable too.
	ErrNonsense error = nonsense{}
	// ErrQuarantined: more samples failed than may be missing; nothing is
	// sealed.
	ErrQuarantined = errors.New("too many samples quarantined")
)

type nonsense struct{}

func (nonsense) Error() string { return "states make no sense" }
func (nonsense) Unwrap() error { return backend.ErrUnavailable }

// errOver ends sessions when there is nothing left to do.
var errOver = errors.New("nothing left to do")
