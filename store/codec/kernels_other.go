package codec

func fastKernels() kernels { return portableKernels() }
