package compress

import (
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ForName returns the format that a file name asks for by its ending: .gz,
// .zst, .lz4; Plain for any other.
func ForName(name string) Format {
	switch {
	case strings.HasSuffix(name, ".gz"):
		return Gzip
	case strings.HasSuffix(name, ".zst"), strings.HasSuffix(name, ".zstd"):
		return Zstd
	case strings.HasSuffix(name, ".lz4"):
		return LZ4
	}
	return Plain
}

// NewWriter compresses what is written to it into w. Close ends the stream and
// does not close w. The same bytes written in any pieces give the same stream:
// no time, no name, one goroutine.
func NewWriter(w io.Writer, f Format) (io.WriteCloser, error) {
	switch f {
	case Plain:
		return nopCloser{w}, nil
	case Gzip:
		return gzip.NewWriter(w), nil
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(true))
	case LZ4:
		z := lz4.NewWriter(w)
		if err := z.Apply(lz4.ConcurrencyOption(1), lz4.ChecksumOption(true)); err != nil {
			return nil, fmt.Errorf("lz4: %w", err)
		}
		return z, nil
	}
	return nil, fmt.Errorf("unknown compression %q: want plain, gzip, zstd or lz4", f)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
