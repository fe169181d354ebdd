// Package store is the workspace and its ledger: the one place that says which
// phases ran, on what, and which data counts.
//
// # Layout
//
//	EAGLEBATCH         marker: {"root_id": hex, "format": n}; written last by Init
//	run.lock           locked (OFD) by the writer for its life; holds who it is
//	checkpoints.jsonl  the ledger as a log: one change a line, checksummed, fsynced
//	manifest.db        the ledger as a bbolt database
//	status.json        live view for onlookers; advisory, never fsynced
//	reserve.bin        room kept so that a full disk can still be cleaned up
//	plans/ orders/ samples/ generations/ trash/ logs/ rejects/
//
// Directories are made by whoever first puts something into them, trash/ apart:
// on a full disk it could not be. For the same reason log and manifest have
// blocks ahead of what they hold, which nobody can take from them.
//
// The ledger is one table (bucket, key) -> value. Keys are text, values are
// msgpack (the bucket "values" apart, whose values are the caller's bytes).
// A line of checkpoints.jsonl is one change of it, whole or not at all:
//
//	{"seq":7,"at":"2026-01-02T15:04:05.6Z","label":"merge: cursor","ops":[["phases","merge","gqFu…"],["values","probe/a"]],"sum":"0123456789abcdef"}
//
// An op of three strings puts a value (base64), one of two deletes a key. sum
// is the xxh64, in hex, of every byte of the line before `,"sum"`. seq grows by
// one a line. A compacted log starts with one line that has `"base":true`
// before ops and holds the whole table as of its seq. manifest.db has the same
// buckets, and in the bucket "ledger" the seq it stands at (8 bytes, big
// endian).
//
// An order file (.ebo) is the magic "EBORDER\n", a version and a zero (both
// uint32), the rows (uint32 each), and their number (uint64); all little
// endian.
//
// # Crash safety
//
// Update appends its line and fsyncs it, then commits one bbolt transaction.
// So after a crash the log is at most one step ahead of manifest.db, and Open
// carries the step over; it is never behind. What a crash left of a line at
// the end of the log never counted and is cut off. Anything else that does not
// fit (a bad line with others after it, a gap in seq, manifest.db ahead of the
// log or different from what the log adds up to) is damage and is reported as
// CorruptError, not repaired: RebuildManifest makes manifest.db anew from the
// log, RebuildLog the log from manifest.db, each only when asked.
//
// After a failed write, fsync or commit the Workspace refuses every later
// change with the same error: a retry could succeed without the data being on
// disk.
//
// # Drills
//
// TestDrillFullDisk: on tmpfs and ext4 of 20 sizes, from too small for an empty
// workspace to just too small for the states, a run ends with 28 or with the
// decision (4), never by a SIGBUS of its own; on a volume without a free block
// stat says how much is missing and gc gives up the reserve and deletes old
// states, killed while doing so or not; with room the files are those of the
// undisturbed run. So they are when others fill the volume in the middle.
//
// TestDrillFailingDisk: each kind of write, fsync, msync and rename on each
// file ends in EIO, in ENOSPC or short, one a run, and the power is cut after
// it. The run ends with operation and file, no file is fsynced again, what the
// ledger had is there, and the next run makes the same files. What the run can
// do without may fail: status.json, and for want of room the name in run.lock
// and reserve.bin. A write that says it was done and was not is found by the
// run, the next one or check --full.
//
// # Drills
//
// What each drill, in the root of the module, proves:
//
//	TestDrillEnumeration       an error or SIGKILL at every hit of every named point, and again while
//	                           resuming: the bytes of the undisturbed run, bounded work done twice
//	TestDrillOrder             write, fsync, rename, fsync of the directory, ledger, for each kind of file
//	TestDrillPowerCut          the same after power cuts at random moments, on ext4 and xfs
//	TestDrillPowerCutAtPoints  and at named points of every phase
//	TestDrillGC                and while gc deletes
//	TestDrillFullDisk          a full disk stops with 28 and goes on when there is room; gc deletes and
//	                           records it while others take every block that becomes free
//	TestDrillFailingDisk       a failed write, fsync or rename ends the run and is not tried again
//	TestDrillDamage            each command answers as before or refuses with 12, names the file, and its
//	                           hint leads back to the states there were
//	TestDrillEngineFaults      nothing that an engine returned wrongly is stored
//	TestDrillSecondProcess     one writer at a time, readers at any moment
//	TestDrillSignals           SIGINT and SIGTERM end in order at every phase, with --on-stop
//	TestDrillLease             gc leaves what is being read
//	TestDrillUsers, Umask      others see what they may and change nothing
//	TestDrillPaths, Clock      odd names, links, long paths; times in the future
//
// Not promised: what a disk returns wrongly without an error is found by a full
// check, not before; a filesystem that lies about fsync can lose what was
// acknowledged.
//
// # Concurrency
//
// One process at a time holds a Workspace. Its methods may be called from many
// goroutines; changes are made one after the other. An Update must not be
// called from inside another one. A Snapshot takes no lock at all.
package store
