// Package backendtest holds every backend to the contract of package backend:
// shapes, order, prefixes, concurrency, cancellation, faults and bounds. The
// test double runs it as well as the real engines.
package backendtest
