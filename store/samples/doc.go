// Package samples keeps the merged samples: one directory a merge generation,
// with a Badger database of records beside a file of fixed rows, the row index.
// The index answers everything but "which tokens": lengths, duplicates and
// totals need no Badger.
//
// # Layout
//
//	DIR/db/          Badger, one record a sample
//	DIR/index.rows   the row index
//	DIR/db.json      JSON, size and xxh64 of each file in db/ as sealed
//	DIR/SEALED       JSON, written last: the generation is complete
//
// A key is the dataset (4 bytes, big-endian), then the sample's index in it
// (8 bytes, big-endian), so that key order is merge order.
//
// A record, little-endian:
//
//	 0  "EBSM"
//	 4  version, 1
//	 5  width w: bits an id takes, those of the largest id here, at least 1
//	 6  zero, 2 bytes
//	 8  dataset, 4 bytes
//	12  index, 8 bytes
//	20  n tokens, 4 bytes
//	24  length m of the metadata, 4 bytes
//	28  mask, one bit a token, least significant first: (n+7)/8 bytes
//	    ids, w bits each, least significant first: (n·w+7)/8 bytes
//	    metadata: msgpack map {i: id, f: file, l: line, k: kinds, e: ends}
//	    xxh64 of all before it, 8 bytes
//
// The row index begins with "ebrows\r\n", version (4 bytes, 1) and row size
// (4 bytes, 52); each row is length, supervised, first, last (4 bytes each),
// the two 16-byte hashes, and crc32c of these 48 bytes, begun with the row's
// number (4 bytes) in place of zero.
//
// # Crash safety
//
// A batch is durable in Badger (SyncWrites), then the directory of its logs,
// which Badger leaves to chance, then its rows are fsynced, then the caller
// moves the ledger's cursor, which alone makes them count. A writer that opens
// again cuts the row index to the cursor and puts the same samples under the
// same keys, which changes nothing; where no row counts it begins anew.
//
// Badger swallows some errors and only logs them: a failed msync of the value
// log, a value that cannot be read. Any line it logs as an error therefore
// poisons the database: the caller's Fail is told and every later call fails.
// For the same reason an empty or short value is damage, never an empty sample.
//
// While writing, the goroutine that logged the line is stopped for good and the
// database never closed: Badger would try the flush again, and an fsync that
// failed once succeeds then, whatever is on disk. Only another process goes on
// (ErrAbandoned). What a failed flush leaves in Badger's MANIFEST is taken off
// when an unfinished generation is next opened; its rows are in the write-ahead
// log. Tables are never compacted: there Badger loses the error of a table that
// it could not write, and the table's rows with it.
//
// # Concurrency
//
// A Writer belongs to one goroutine. A Store, a Set and Rows are safe for concurrent
// use; whoever opened them closes them.
package samples
