//go:build !amd64

package codec

func kernelForms() []kernels { return []kernels{portableKernels()} }
