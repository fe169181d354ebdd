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

// blobNeeds is what the size of a blob is chosen from.
type blobNeeds struct {
	asked         int64 // as configured; 0: chosen
	total         int64 // raw bytes of all
	samples       int64
	room          int64 // on the disk; 0: it will be another
	memory        int64 // that extraction may take; 0: unknown
	bytesPerToken int64
	rate          float64 // tokens a second; 0: unknown
}

// chooseBlobSize returns the raw bytes a blob is filled to, and why.
func chooseBlobSize(n blobNeeds) (size int64, why string) {
	if n.total == 0 {
		return max(n.asked, minBlob), "none: no sample is to be computed"
	}
	size, why = n.asked, "as configured"
	if n.asked == 0 {
		size, why = n.choose()
	}
	mean := n.total / max(n.samples, 1)
	holds := "one sample each"
	if mean > 0 && size/mean > 1 {
		holds = fmt.Sprintf("about %s samples each", human.Count(size/mean))
	}
	line := fmt.Sprintf("%s, %s: %s", human.Bytes(size), holds, why)
	if n.rate > 0 && n.bytesPerToken > 0 {
		line += fmt.Sprintf("; a crash costs at most %s of work a blob", hours(float64(max(size, mean))/float64(n.bytesPerToken)/n.rate))
	}
	return size, line
}

func (n blobNeeds) choose() (size int64, why string) {
	size, why = defaultBlob, "the default"
	if n.total < fewBlobs*size {
		size, why = n.total/fewBlobs, fmt.Sprintf("a sixteenth of %s", human.Bytes(n.total))
	}
	if k := int64(n.rate * workSeconds * float64(n.bytesPerToken)); n.rate > 0 && k < size {
		size, why = k, fmt.Sprintf("a minute's work at %s tokens/s", human.Count(int64(n.rate)))
	}
	if k := n.room / 64; n.room > 0 && k < size {
		size, why = k, fmt.Sprintf("a 64th of the %s of room", human.Bytes(n.room))
	}
	// Until it is synced, a blob takes memory as page cache.
	if k := n.memory / 4; n.memory > 0 && k < size {
		size, why = k, fmt.Sprintf("a quarter of extract.memory, %s", human.Bytes(n.memory))
	}
	if size < minBlob {
		size, why = minBlob, fmt.Sprintf("the least that is worth a file, more than %s", why)
	}
	return size, why
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
