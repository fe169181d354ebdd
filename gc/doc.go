// Package gc reclaims generations that nothing needs: plan, statistics, execute.
// It also keeps the registry of generations that were not made here.
//
// # Layout
//
// A generation that goes is first condemned in the ledger, then renamed into
// a trash directory on its own filesystem: trash/NNNNNN-NAME of the workspace for
// those made here, .eaglebatch-trash-ROOT/NNNNNN-NAME beside an adopted
// directory. After the grace period it is unlinked. Until then Restore brings
// it back. Its row stays for ever, since numbers are never reused: in state
// retired, with an empty path and no bytes.
//
// # Crash safety
//
// The ledger says what is about to happen before it does, so that whatever a
// crash leaves can be told from where the directory lies:
//
//	condemned, in its place       the rename did not happen: done by the next sweep
//	condemned, in the trash       the rename happened: recorded by the next sweep
//	trashed, in its place         a restore did not finish: recorded by the next sweep
//	trashed, without a path       being unlinked: no longer restorable, finished by the next sweep
//
// A directory of ours that is neither in its place nor in the trash was lost: its
// row ends as if it had been unlinked, once a repair made its states anew or
// somebody names it.
//
// A directory that is partly unlinked is therefore always one whose row has no
// path any more.
//
// # Safety
//
// Directories are opened with openat2, without following a symbolic link or
// crossing into another mount, and are renamed and emptied relative to the open
// directory. What is about to be renamed must be the very directory, by device,
// inode and listing, that was planned for. It must hold nothing that the
// configuration needs, and nothing that this process could not unlink, so that
// no deletion stops half way. Everything else is refused and the reason given.
//
// # Concurrency
//
// The functions change the workspace and must not run at once; run.lock, which
// an open workspace holds, sees to it between processes. A reader's lease (a
// shared lock on LEASE in the generation's directory) keeps a generation. What
// was adopted has no lease: it is kept while another process has a file of it
// open or mapped, as far as /proc shows.
package gc
