package codec

import "golang.org/x/sys/cpu"

// kernelForms returns the forms that this machine can run.
func kernelForms() []kernels {
	k := []kernels{portableKernels()}
	if cpu.X86.HasAVX2 {
		k = append(k, avx2Kernels())
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW {
		k = append(k, avx512Kernels())
	}
	return k
}
