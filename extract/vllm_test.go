package extract

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/enginetest"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// kimi has the layers that a campaign with Kimi-K2.5 takes.
func kimi() shape {
	return shape{hidden: 32, layers: 61, capture: []int{2, 30, 58, 61}, dtype: "bf16"}
}

// vllmWorld is a world whose states a vLLM server gives.
func vllmWorld(t testing.TB, p planned) *world {
	p.shape = kimi()
	p.meta = func(m *blob.Meta) { m.Synthetic, m.Engine = false, "vllm" }
	w := newWorld(t, p)
	w.rows = func(ids []uint32) []byte { return enginetest.Rows(ids, w.shape.capture, w.shape.hidden) }
	return w
}

// vllmServer starts a fake that serves what vllmWorld plans.
func vllmServer(t testing.TB, dir string, change func(*enginetest.VLLM)) (*enginetest.VLLM, string) {
	t.Helper()
	sh := kimi()
	v := &enginetest.VLLM{Dir: dir, Layers: sh.capture, Hidden: sh.hidden, Vocab: testVocab, MaxLen: 100_000, Delay: time.Millisecond}
	if change != nil {
		change(v)
	}
	url := v.Start()
	t.Cleanup(v.Close)
	return v, url
}

func vllmClient(t testing.TB, dir string, urls []string, change func(*vllm.Options)) *vllm.Backend {
	t.Helper()
	sh := kimi()
	o := vllm.Options{
		Endpoints: urls, Hidden: sh.hidden, Layers: sh.layers, Vocab: testVocab, Capture: sh.capture, SharedDir: dir, Tag: "test",
		FileWait: 5 * time.Second, Timeout: 10 * time.Second, Backoff: 2 * time.Millisecond, Attempts: 2,
	}
	if change != nil {
		change(&o)
	}
	b, err := vllm.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reviving starts a server that died again.
type reviving struct {
	*vllm.Backend
	v *enginetest.VLLM
}

func (r *reviving) Serve(ctx context.Context, slot int, in <-chan backend.Request, emit func(backend.Chunk) error) error {
	err := r.Backend.Serve(ctx, slot, in, emit)
	r.v.Revive()
	return err
}

// nothingLeft ends the client and wants the shared directory empty, once writers
// that hang are gone: what one still holds is not taken from it.
func nothingLeft(t *testing.T, v *enginetest.VLLM, b *vllm.Backend) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	v.LetGo()
	v.Wait()
	b.Sweep()
	left, err := filepath.Glob(filepath.Join(v.Dir, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// committed verifies the blobs that the ledger has of a generation that is not
// sealed, and returns how many samples they hold.
func (w *world) committed(g store.GenerationRow) (n int) {
	w.t.Helper()
	var rows []store.BlobRow
	w.must(w.ws.View(func(r store.Reader) (err error) {
		rows, err = r.Blobs(g.ID)
		return err
	}))
	want := w.states()
	for _, row := range rows {
		r, err := blob.Open(filepath.Join(w.ws.GenerationDir(g), blobName(int(row.No))))
		w.must(err)
		for i := range r.Entries() {
			if _, gone := r.Absent(i); !gone {
				w.sameStates(r, i, want[int(r.Entry(i).Sample)])
				n++
			}
		}
		w.must(r.Close())
	}
	return n
}

// blobs counts the committed blobs of all generations.
func (w *world) blobs() (n int64) {
	err := w.ws.View(func(r store.Reader) error {
		gens, err := r.Generations()
		for _, g := range gens {
			n += g.Blobs
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
	return n
}

// serverFaults are all that a server can do wrong; how long the client waits is
// set so that it notices.
var serverFaults = []string{
	enginetest.Fault500, enginetest.Fault503, enginetest.Fault429, enginetest.FaultClose, enginetest.FaultCut, enginetest.FaultDie,
	enginetest.FaultLocked, enginetest.FaultNoFile, enginetest.FaultTruncated, enginetest.FaultGarbage, enginetest.FaultWrongIDs,
	enginetest.FaultWrongPrompt, enginetest.FaultShort, enginetest.FaultLayer, enginetest.FaultHidden, enginetest.FaultFloat,
	enginetest.FaultNaN, enginetest.FaultZero, enginetest.FaultNoParams, enginetest.FaultNullParams, enginetest.FaultSlow,
	enginetest.FaultHang, enginetest.FaultNotJSON, enginetest.FaultPath,
}

// TestServerFaultOnce: a fault that passes, at the canary or at a sample, costs
// time and nothing else.
func TestServerFaultOnce(t *testing.T) {
	for i, fault := range serverFaults {
		for _, at := range []int{1, 6} { // 1 is the canary
			gen := 1 + (i+at)%3
			if gen == 1 && (fault == enginetest.FaultLocked || fault == enginetest.FaultNoFile) {
				gen = 3 // the first has no lock
			}
			t.Run(fmt.Sprintf("%s at %d, generation %d", fault, at, gen), func(t *testing.T) {
				t.Parallel()
				w := vllmWorld(t, planned{lengths: lengths(12, 60)})
				v, url := vllmServer(t, t.TempDir(), func(v *enginetest.VLLM) {
					v.Gen, v.InPlace, v.Faults = gen, gen == 2, map[int]string{at: fault}
				})
				b := vllmClient(t, v.Dir, []string{url}, func(o *vllm.Options) {
					if fault == enginetest.FaultHang {
						o.Timeout = time.Second
					}
					if fault == enginetest.FaultLocked {
						o.FileWait = time.Second
					}
				})
				g := w.seal(w.options(&reviving{b, v})).Generation
				if gone := w.verify(g); len(gone) > 0 {
					t.Errorf("left out: %v", gone)
				}
				nothingLeft(t, v, b)
			})
		}
	}
}

// badThenWell runs with a server that is at fault until patience ends, wants none
// of so many samples blamed for it, and finishes with one that is well. It returns
// the generation as the first left it.
func badThenWell(t *testing.T, samples int, bad func(*enginetest.VLLM), client func(*vllm.Options)) store.GenerationRow {
	t.Helper()
	w := vllmWorld(t, planned{lengths: lengths(samples, 60)})
	dir := t.TempDir()
	v, url := vllmServer(t, dir, bad)
	b := vllmClient(t, dir, []string{url}, client)
	o := w.options(&reviving{b, v})
	o.Patience, o.MaxQuarantined = 500*time.Millisecond, human.Share{Absolute: int64(samples)}
	res, err := w.run(t.Context(), o)
	if !errors.Is(err, backend.ErrUnavailable) || res.Generation.Quarantined != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	nothingLeft(t, v, b)
	v, url = vllmServer(t, dir, nil)
	b = vllmClient(t, dir, []string{url}, nil)
	if gone := w.verify(w.seal(w.options(b)).Generation); len(gone) > 0 {
		t.Errorf("left out: %v", gone)
	}
	nothingLeft(t, v, b)
	return res.Generation
}

// TestServerFaultAlways: a server that does nothing else is at fault, nothing of
// it is stored, and once it is well the job is finished.
func TestServerFaultAlways(t *testing.T) {
	for _, fault := range serverFaults {
		if fault == enginetest.FaultSlow {
			continue // no fault if one has the time
		}
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			g := badThenWell(t, 20, func(v *enginetest.VLLM) { v.Always = fault },
				func(o *vllm.Options) { o.FileWait, o.Timeout = 50*time.Millisecond, 50*time.Millisecond })
			if g.Distinct != 0 {
				t.Errorf("stored of a server at fault: %+v", g)
			}
		})
	}
}

// TestServerClosesIdle: a server that closes a connection just when the next
// request takes it costs no sample its attempt.
func TestServerClosesIdle(t *testing.T) {
	w := vllmWorld(t, planned{lengths: lengths(60, 20)})
	v, url := vllmServer(t, t.TempDir(), func(v *enginetest.VLLM) { v.Idle = time.Nanosecond })
	b := vllmClient(t, v.Dir, []string{url}, func(o *vllm.Options) { o.Attempts, o.Concurrency = 3, 2 })
	w.verify(w.seal(w.options(b)).Generation)
	nothingLeft(t, v, b)
}

// scaled changes every value by up to a share, the same way each time.
func scaled(share float64) func([]uint32, []byte) {
	return func(_ []uint32, states []byte) {
		for i := 0; i < len(states); i += 2 {
			v := math.Float32frombits(uint32(binary.LittleEndian.Uint16(states[i:])) << 16)
			v *= float32(1 + share*(float64(mix(uint64(i))>>11)/(1<<52)-1))
			binary.LittleEndian.PutUint16(states[i:], uint16(math.Float32bits(v)>>16))
		}
	}
}

// restarts are what may listen at an address after a restart. All but the layers
// pass every check of shape, and those do too.
var restarts = []struct {
	name   string
	ok     bool
	change func(*enginetest.VLLM)
}{
	{"the same", true, func(*enginetest.VLLM) {}},
	{"other kernels", true, func(v *enginetest.VLLM) { v.Alter = scaled(0.02) }},
	{"other layers", false, func(v *enginetest.VLLM) { v.Layers = []int{1, 29, 57, 61} }},
	{"quantized", false, func(v *enginetest.VLLM) { v.Alter = scaled(0.4) }},
	{"other weights", false, func(v *enginetest.VLLM) {
		v.Alter = func(_ []uint32, states []byte) {
			for i := 1; i < len(states); i += 2 {
				states[i] ^= byte(mix(uint64(i))) & 0x80 // other signs
			}
		}
	}},
}

// TestServerRestarted: between two runs another server came up. What was stored
// stays, and the other's answers are not believed.
func TestServerRestarted(t *testing.T) {
	for _, c := range restarts {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := vllmWorld(t, planned{lengths: lengths(24, 60)})
			v, url := vllmServer(t, t.TempDir(), nil)
			b := vllmClient(t, v.Dir, []string{url}, nil)
			o := w.options(b)
			o.Limit = 8
			res, err := w.run(t.Context(), o)
			w.must(err)
			before := w.committed(res.Generation)
			nothingLeft(t, v, b)
			v, url = vllmServer(t, t.TempDir(), c.change)
			b = vllmClient(t, v.Dir, []string{url}, nil)
			res, err = w.run(t.Context(), w.options(b))
			if c.ok {
				if err != nil || !res.Sealed {
					t.Errorf("%+v, %v", res, err)
				}
			} else if !errors.Is(err, ErrNonsense) || res.Sealed || w.committed(res.Generation) != before {
				t.Errorf("%+v, %v", res, err)
			}
			nothingLeft(t, v, b)
		})
	}
}

// TestServerRestartsMeanwhile: one of two servers comes back as another during
// the run, sooner than any real one. It is put out and the other one finishes;
// alone it ends the run.
func TestServerRestartsMeanwhile(t *testing.T) {
	for _, c := range restarts[2:] {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, alone %t", c.name, alone), func(t *testing.T) {
				t.Parallel()
				w := vllmWorld(t, planned{lengths: lengths(80, 60)})
				dir := t.TempDir()
				// Its tenth request hangs, and is in flight when it goes down.
				v, url := vllmServer(t, dir, func(v *enginetest.VLLM) { v.Faults = map[int]string{10: enginetest.FaultHang} })
				urls := []string{url}
				if !alone {
					_, other := vllmServer(t, dir, func(v *enginetest.VLLM) { v.Slow = 100 * time.Microsecond })
					urls = append(urls, other)
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				wg.Go(func() {
					for n := 0; (n < 10 || w.blobs() == 0) && ctx.Err() == nil; n, _ = v.Calls() {
						time.Sleep(time.Millisecond)
					}
					v.Close()
					vllmServer(t, dir, func(v *enginetest.VLLM) {
						c.change(v)
						v.Addr = url[len("http://"):]
					})
				})
				b := vllmClient(t, dir, urls, func(o *vllm.Options) { o.Concurrency = 1 })
				o := w.options(b)
				o.Patience = time.Minute
				res, err := w.run(t.Context(), o)
				if alone {
					if !errors.Is(err, ErrNonsense) || res.Sealed || w.committed(res.Generation) == 0 {
						t.Fatalf("%+v, %v", res, err)
					}
				} else {
					w.must(err)
					w.verify(res.Generation)
					if !w.notes.said("is out: ") {
						t.Error("the server that came back as another was not put out")
					}
				}
				nothingLeft(t, v, b)
			})
		}
	}
}
