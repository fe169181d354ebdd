package blob

import "fmt"

// A sample that a plan splits becomes several: its consecutive windows. Each is
// a sample of its own, with hashes of its own tokens, and its number says which
// window of which sample it is: the window in the upper 24 bits, the index in
// the dataset in the lower 40. Samples that are not split have window 0.
const windowShift = 40

// WindowSample returns the number of a window of the sample with an index.
func WindowSample(index uint64, window uint32) uint64 {
	if index>>windowShift != 0 || window>>(64-windowShift) != 0 {
		panic(fmt.Sprintf("blob: window %d of sample %d does not fit a sample number", window, index))
	}
	return uint64(window)<<windowShift | index
}

// SplitSample returns the index in the dataset and the window of a sample
// number. Window w of a plan with a cap of n begins at token w*n.
func SplitSample(sample uint64) (index uint64, window uint32) {
	return sample & (1<<windowShift - 1), uint32(sample >> windowShift)
}
