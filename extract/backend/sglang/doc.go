// Package sglang is the backend for stock SGLang servers. They give one layer
// over HTTP, the last, after the final norm, as JSON; other layers are refused,
// with the ways to have them. It is for small runs: a number takes eleven bytes.
//
// # Concurrency
//
// A slot is an endpoint; each request is a goroutine, and emit is called by one
// of them at a time.
package sglang
