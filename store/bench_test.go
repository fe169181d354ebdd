package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"eaglebatch/internal/fsx"
)

// night writes the log of a long night into a new workspace: steps checkpoints
// that advance a phase, the first blobs of which count a blob too.
func night(tb testing.TB, steps, blobs int) string {
	tb.Helper()
	dir := tb.TempDir()
	w, err := Init(tb.Context(), dir, Options{Reserve: 64 << 10})
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	h, err := readLog(dir)
	if err != nil {
		tb.Fatal(err)
	}
	log := appendStep(nil, h.last)
	for i := range steps {
		o := newOverlay(state{})
		tx := Tx{Reader: rows{o}, o: o}
		id := uint32(i)
		err := tx.PutPhase(PhaseRow{Name: PhaseExtract, State: Running, Cursor: bytes.Repeat([]byte{7}, 64), Done: int64(i), Total: 1 << 20, Unit: "samples",
			Started: time.Now(), Fingerprint: []Part{{"model", fmt.Sprintf("%064d", i)}, {"layers", "2,30,58,61"}, {"dtype", "bf16"}}})
		if err == nil && i < blobs {
			err = tx.PutBlob(BlobRow{Gen: 1, No: id, Bytes: 1 << 30, RawBytes: 1 << 30, Samples: 300, Tokens: 18724, Hash: fmt.Sprintf("%064x", i)})
		}
		if err != nil {
			tb.Fatal(err)
		}
		log = appendStep(log, step{seq: h.seq + uint64(i) + 1, at: time.Now(), label: "extract: blob", ops: o.ops})
	}
	f, err := (&fsx.FS{}).Create(filepath.Join(dir, logName))
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := f.Write(log); err != nil {
		tb.Fatal(err)
	}
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// look is what stat reads.
func look(tb testing.TB, dir string) int {
	s, err := Inspect(dir)
	if err != nil {
		tb.Fatal(err)
	}
	bs, err := s.Blobs(1)
	if err != nil {
		tb.Fatal(err)
	}
	return len(bs)
}

func TestNightIsRead(t *testing.T) {
	dir := night(t, 80, 74)
	if n := look(t, dir); n != 74 {
		t.Errorf("%d blobs, want 74", n)
	}
	if err := RebuildManifest(t.Context(), dir, Options{}); err != nil {
		t.Fatal(err)
	}
	w, err := Open(t.Context(), dir, Options{Reserve: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkInspect: a snapshot of 8,000 checkpoints with 7,400 blobs, all rows
// decoded. The yardstick is encoding/json over the same lines, decoded only as
// far as JSON goes.
func BenchmarkInspect(b *testing.B) {
	dir := night(b, 8000, 7400)
	h, err := readLog(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(h.size)
	for b.Loop() {
		if n := look(b, dir); n != 7400 {
			b.Fatalf("%d blobs", n)
		}
	}
	from := time.Now()
	data, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		var v struct {
			Seq   uint64     `json:"seq"`
			At    time.Time  `json:"at"`
			Label string     `json:"label"`
			Ops   [][]string `json:"ops"`
			Sum   string     `json:"sum"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			b.Fatal(err)
		}
	}
	yard := time.Since(from)
	b.ReportMetric(float64(yard.Milliseconds()), "ms-json")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/yard.Seconds(), "x-of-json")
}

// BenchmarkUpdate: one step. The yardstick is one append and fsync to a plain
// file on the same disk.
func BenchmarkUpdate(b *testing.B) {
	w, err := Init(b.Context(), b.TempDir(), Options{Reserve: 64 << 10})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	i := int64(0)
	for b.Loop() {
		i++
		err := w.Update(b.Context(), "bench", func(tx *Tx) error {
			return tx.PutPhase(PhaseRow{Name: PhaseMerge, Done: i, Cursor: make([]byte, 100)})
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	per := b.Elapsed() / time.Duration(b.N)
	f, err := w.FS().Create(filepath.Join(w.Dir(), "yardstick"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	const n = 100
	from := time.Now()
	for range n {
		if _, err := f.Write(make([]byte, 300)); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(per)/float64(time.Since(from)/n), "x-of-fsync")
}
