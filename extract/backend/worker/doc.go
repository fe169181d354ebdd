// Package worker is the backend for everything that is no server: an engine in
// a child process that speaks the frames of PROTOCOL.md on an inherited socket.
// The worker that ships with it (Script) runs Hugging Face transformers.
//
// # Layout
//
// frame.go reads and writes frames, process.go starts a child, agrees with it
// on what it computes and ends it, serve.go hands requests to it.
//
// # Concurrency
//
// A slot is one child. It lives from the first use of the slot to Close, across
// calls of Serve, as long as each of them ends with everything answered. A call
// that ends otherwise (cancelled, refused by emit, the child silent or out of
// step) kills the child with its whole process group: what it still computes is
// of no use to anybody, and the next call starts a fresh one.
//
// The host reads answers in one goroutine and writes requests in another, so
// neither side can block the other for good; and it never has more requests
// outstanding than the worker gave credit for.
package worker
