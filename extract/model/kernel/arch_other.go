//go:build !amd64 && !arm64

package kernel

func archSets() []*Set { return nil }

func archBF16() (fast, slow []*BF16) { return nil, nil }
