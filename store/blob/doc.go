// Package blob reads and writes blobs: self-describing files that hold the
// hidden states, token ids and loss masks of whole samples in independently
// compressed, checksummed chunks with an index at the end. store/FORMAT.md
// specifies the bytes.
//
// # Layout
//
//	header: magic, version, Meta as JSON, checksum
//	chunks: for each entry ids, mask, row maps where rows were selected, then
//	        blocks of rows, one chunk a layer
//	footer: entry table, chunk table, reasons of absent entries
//	trailer: where the footer is, its checksum, the hash of all that came before
//
// Chunks have no headers and no stored offsets: each begins where the one before
// ends, so that there are no gaps, and no byte that no checksum covers.
//
// # Crash safety
//
// A Writer writes under a temporary name; Commit makes the bytes durable before
// the file gets its final name, and the name durable before it returns. A blob
// under its final name is complete.
//
// # Concurrency
//
// A Writer belongs to one goroutine; it encodes on several and its bytes do not
// depend on how many. A Reader may be used from many goroutines at once.
//
// # Damage
//
// A Reader checks every length and number in header, footer and trailer before
// it uses them, and the checksum of every chunk before it returns values from
// it: it gives the right bytes or an error. It reads with pread, so that a file
// that is cut while open is an error too, and not a signal.
package blob
