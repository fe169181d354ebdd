package exporter

import (
	"hash"
	"io"
)

// counter passes bytes on, counts and hashes them.
type counter struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.sum.Write(p[:n])
	c.n += int64(n)
	return n, err
}
