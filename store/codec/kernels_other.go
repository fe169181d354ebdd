//go:build !amd64

package codec

func fastKernels() kernels { return portableKernels() }
