// Package enginetest has stand-ins for the engines that extraction talks to: a
// vLLM server, an SGLang server and a worker. They answer as the real ones do,
// down to their traps, and misbehave on request. Tests alone import it.
//
// Their states are a function of the token ids up to the row, the layer and the
// channel (Row), so that any row can be computed anew and prefixes agree.
package enginetest
