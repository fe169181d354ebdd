// Package export says what an export is made from: one row a position of the
// order, with its token ids and its mask. The packages below it turn rows into
// files; they know nothing of where rows come from.
package export
