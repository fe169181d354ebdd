// Package permute shuffles the merged index: a seeded permutation of row
// numbers that moves no sample.
//
// # Order
//
// The merged index is the concatenation of the datasets' rows as configured.
// Eval samples and rows with the same content are taken out of it, weights
// repeat or subsample what is left of each dataset, and the result is permuted.
// Training positions come first, then the eval positions.
//
// Algorithm numpy is numpy.random.default_rng(seed).permutation(n) to the bit:
// without weights and eval samples the order is that of
// datasets.Dataset.shuffle(seed) on the concatenated datasets. Algorithm
// feistel needs no array; below 65,536 positions, where its permutations are
// not uniform, numpy's is used and recorded.
//
// What is drawn for one dataset (eval samples, the fraction of a weight)
// depends on the seed and the dataset's name and rows, not on other datasets.
//
// # Crash safety
//
// The order file is durable before the one ledger change that makes it count.
// An interrupted shuffle starts over.
package permute
