package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// TestARM64 runs this package's tests of products and rounding as an arm64
// program, in an emulator: no other machine is needed to hold "neon" to the
// bytes of "generic".
func TestARM64(t *testing.T) {
	if os.Getenv("EAGLEBATCH_LONG") == "" {
		t.Skip("builds for another architecture: set EAGLEBATCH_LONG=1 to run it")
	}
	if runtime.GOARCH == "arm64" {
		t.Skip("this is an arm64 program: the other tests are what this one runs")
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Skipf("no emulator of arm64 (Debian's qemu-user-static): %v", err)
	}
	exe := filepath.Join(t.TempDir(), "kernel.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", exe, ".")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), qemu, exe, "-test.run", "^Test(Gemm|FMA32|VectorOps|Pack)$", "-test.v").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
