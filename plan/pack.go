package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"eaglebatch/internal/human"
	"eaglebatch/store/blob"
	"eaglebatch/store/genindex"
)

const (
	defaultBlob = 1 << 30
	minBlob     = 4 << 20
	fewBlobs    = 16 // a job is cut into at least so many, so that slots share it and a crash costs little
	workSeconds = 60 // engine time that one is ready to lose with a blob
)

// chooseBlobSize returns the raw bytes a blob is filled to, and why.
func chooseBlobSize(asked, total, room, bytesPerToken int64, rate float64) (size int64, why string) {
	if asked > 0 {
		return asked, fmt.Sprintf("%s a blob, as configured", human.Bytes(asked))
	}
	size, why = defaultBlob, "the default"
	if total < fewBlobs*size {
		size, why = total/fewBlobs, fmt.Sprintf("a sixteenth of %s", human.Bytes(total))
	}
	if n := int64(rate * workSeconds * float64(bytesPerToken)); rate > 0 && n < size {
		size, why = n, fmt.Sprintf("a minute's work at %s tokens/s", human.Count(int64(rate)))
	}
	if n := room / 64; room > 0 && n < size {
		size, why = n, fmt.Sprintf("a 64th of the %s of room", human.Bytes(room))
	}
	if size < minBlob {
		size, why = minBlob, fmt.Sprintf("the least that is worth a file, over %s", why)
	}
	return size, fmt.Sprintf("%s a blob: %s", human.Bytes(size), why)
}

// pack cuts the new samples, in the order in which they are first seen, into
// blobs of size raw bytes and writes their entries. Inside a blob the longest
// come first, so that batches hold samples of like length. A sample larger
// than a blob has one to itself.
func (p *planner) pack(ctx context.Context, w *genindex.Writer) (blobs int64, err error) {
	d := p.distinct
	var open []uint32
	var bytes int64
	flush := func() error {
		if len(open) == 0 {
			return nil
		}
		if err := p.writeBlob(w, uint32(blobs), open); err != nil {
			return err
		}
		blobs++
		open, bytes = open[:0], 0
		return nil
	}
	for i := range d.len() {
		if i&0xfff == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if d.source[i] != 0 {
			continue
		}
		n := p.shape.bytes(d.row(uint32(i)), d.need[i])
		if bytes+n > p.blobSize {
			if err := flush(); err != nil {
				return 0, err
			}
		}
		open, bytes = append(open, uint32(i)), bytes+n
	}
	if err := flush(); err != nil {
		return 0, err
	}
	return blobs, nil
}

func (p *planner) writeBlob(w *genindex.Writer, no uint32, numbers []uint32) error {
	d := p.distinct
	slices.SortFunc(numbers, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(d.need[b], d.need[a]), cmp.Compare(a, b))
	})
	entries := make([]blob.Entry, len(numbers))
	for i, n := range numbers {
		d.blob[n], d.entry[n] = no, uint32(i)
		entries[i] = p.newEntry(n)
	}
	return w.Blob(entries)
}
