// Package compress opens source files and writes export streams that are
// plain, gzip, zstd or lz4.
//
// A reader tells the format by the first bytes, never by the file's name, so a
// misnamed file is still read right. Concatenated members or frames read as
// one stream, as gzip -d, zstd -d and lz4 -d do.
//
// # Concurrency
//
// A Reader or writer belongs to one goroutine.
package compress
