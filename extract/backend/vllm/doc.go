// Package vllm is the backend for vLLM servers that extract hidden states
// (speculative method extract_hidden_states with the connector
// ExampleHiddenStatesConnector). A request goes over HTTP; its states come back
// as a safetensors file in a directory that server and client share, and the
// answer names the file.
//
// Three generations of the connector are served, told apart by what they do:
// the file may be complete before the answer, or be written behind a lock file
// that the server holds (flock) until it is done. That lock is also let go when
// the write failed.
//
// # Crash safety
//
// A file counts only if its answer arrived: the server writes files for
// requests that were given up too, with rows that may be garbage. What lies in
// the directory from before is never taken up. Every request has an id with this
// run's tag, which the server makes part of the file's name; so files that
// nobody waits for can be told from those of others, and are removed (Sweep).
//
// # Concurrency
//
// A slot is an endpoint. Each request is a goroutine; what they have in flight
// is bounded in number and in bytes of states. Rows go to emit in pieces, one
// request at a time, and the file is unlinked once emit has taken them all.
package vllm
