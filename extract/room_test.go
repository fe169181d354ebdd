package extract

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"
	"eaglebatch/store"
	"eaglebatch/store/blob"

	"golang.org/x/sys/unix"
)

// volume mounts a tmpfs, where nobody else takes or gives room, or skips where
// that is not allowed.
func volume(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=100663296"); err != nil {
		t.Skipf("needs to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// tight is a plan of 7.4 MB of states.
func tight(perBlob int) planned {
	return planned{shape: shape{hidden: 256, layers: 8, capture: []int{2, 4, 6, 8}, dtype: "bf16"},
		lengths: []int{300, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300}, perBlob: perBlob,
		meta: func(m *blob.Meta) { m.Codec = "lz4-planes" }}
}

const tightRaw = 12 * 300 * 4 * 256 * 2

// blobBytes adds up the blobs among files.
func blobBytes(files map[string]string) (n int64) {
	for name, b := range files {
		if strings.HasSuffix(name, ".ebb") {
			n += int64(len(b))
		}
	}
	return n
}

// foretold makes the world on a volume of its own, with a plan that foretells so
// many bytes.
func foretold(t *testing.T, p planned, bytes int64) (w *world, vol string) {
	t.Helper()
	vol = volume(t)
	p.dir = vol + "/work"
	w = newWorld(t, p)
	w.update(func(tx *store.Tx) error {
		row, ok, err := tx.Plan()
		if err != nil || !ok {
			return fmt.Errorf("no plan: %w", err)
		}
		row.ExpectedBytes, row.RawBytes = bytes, tightRaw
		return tx.PutPlan(row)
	})
	return w, vol
}

func (w *world) free(vol string) int64 {
	w.t.Helper()
	sp, err := fsx.SpaceAt(vol)
	w.must(err)
	return sp.Free
}

// leaving are options that leave so much room above the reserve.
func (w *world) leaving(vol string, slots int, room int64) (o Options, keep int64) {
	keep = w.free(vol) - room
	o = w.options(w.backend(slots, ""))
	o.Reserve = human.Share{Absolute: keep}
	return o, keep
}

// rest is what a generation and the ledger take beside blobs.
const rest = 300 << 10

// TestRoomAsForetold: a plan that fits as it was foretold is not refused for the
// raw bytes of its first blobs.
func TestRoomAsForetold(t *testing.T) {
	for _, perBlob := range []int{12, 3} {
		t.Run(fmt.Sprint(perBlob, " a blob"), func(t *testing.T) {
			want := reference(t, tight(perBlob))
			n := blobBytes(want)
			if n > tightRaw*4/5 {
				t.Fatalf("%d bytes of %d raw: nothing is shown", n, tightRaw)
			}
			w, vol := foretold(t, tight(perBlob), n)
			o, _ := w.leaving(vol, 1, n+rest)
			sameFiles(t, want, w.files(w.seal(o).Generation))
		})
	}
}

// TestRoomNotMeasured: a plan that rests on no measurement asks for raw bytes
// before it computes anything.
func TestRoomNotMeasured(t *testing.T) {
	w, vol := foretold(t, tight(12), tightRaw)
	o, _ := w.leaving(vol, 1, tightRaw-rest)
	res, err := w.run(t.Context(), o)
	if !errors.Is(err, store.ErrDiskFull) {
		t.Fatalf("%+v, %v", res, err)
	}
	if w.notes.units != 0 {
		t.Errorf("%d samples were computed first", w.notes.units)
	}
}

// TestRoomWorseThanForetold: states that take more than was foretold end the run
// before they take what is kept free, what is committed stays, and with more
// room it goes on.
func TestRoomWorseThanForetold(t *testing.T) {
	for _, perBlob := range []int{12, 3} {
		for _, slots := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d a blob, %d slots", perBlob, slots), func(t *testing.T) {
				want := reference(t, tight(perBlob))
				n := blobBytes(want)
				w, vol := foretold(t, tight(perBlob), n/4)
				o, keep := w.leaving(vol, slots, n*3/5)
				least := w.lowest(vol, func() {
					res, err := w.run(t.Context(), o)
					var se *store.SpaceError
					if !errors.As(err, &se) || res.Sealed {
						t.Fatalf("%+v, %v: want a SpaceError", res, err)
					}
					if se.Missing() <= 0 || se.Missing() > n {
						t.Errorf("%d bytes missing for %d: %v", se.Missing(), n, se)
					}
				})
				if least < keep-rest { // the ledger's own growth apart
					t.Errorf("%d bytes were free at the worst, %d were to be kept", least, keep)
				}
				o, _ = w.leaving(vol, slots, n+rest)
				sameFiles(t, want, w.files(w.seal(o).Generation))
			})
		}
	}
}

// lowest returns the least room that was seen while fn ran, and after it.
func (w *world) lowest(vol string, fn func()) int64 {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	seen := make(chan int64, 1)
	go func() {
		least := int64(1) << 62
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if sp, err := fsx.SpaceAt(vol); err == nil {
				least = min(least, sp.Free)
			}
			<-tick.C
		}
		seen <- least
	}()
	defer stop() // where fn ends the test
	fn()
	stop()
	return min(<-seen, w.free(vol))
}

// TestNoTwinWithoutRoom: a straggler's blob, which TestSlowSlot has made a second
// time, is not where both copies do not fit.
func TestNoTwinWithoutRoom(t *testing.T) {
	p := tight(2)
	want := reference(t, p)
	n := blobBytes(want)
	w, vol := foretold(t, p, n)
	o, _ := w.leaving(vol, 2, n+rest)
	o.Backend = w.rated(2, 3000, "slow=1:30")
	o.Stall = time.Hour
	sameFiles(t, want, w.files(w.seal(o).Generation))
	if w.notes.said("takes over") {
		t.Error("a blob was made twice")
	}
}
