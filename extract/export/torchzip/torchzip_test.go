package torchzip

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, items ...Item) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, "archive", items); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func data(b ...byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

func TestRefuses(t *testing.T) {
	for name, it := range map[string]Item{
		"short data":    {"x", Tensor{DType: BF16, Shape: []int64{3}, Data: data(1, 2, 3, 4)}},
		"long data":     {"x", Tensor{DType: BF16, Shape: []int64{1}, Data: data(1, 2, 3, 4)}},
		"unknown type":  {"x", Tensor{DType: "fp8", Shape: []int64{1}, Data: data(1)}},
		"unknown value": {"x", 3.5},
	} {
		if err := Write(io.Discard, "archive", []Item{it}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestTorchReads lets torch read the files, mapped and with weights_only.
func TestTorchReads(t *testing.T) {
	python := os.Getenv("EAGLEBATCH_TEST_PYTHON")
	if python == "" {
		t.Skip("EAGLEBATCH_TEST_PYTHON names no Python with torch")
	}
	path := filepath.Join(t.TempDir(), "x.pt")
	b := write(t,
		Item{"half", Tensor{DType: FP16, Shape: []int64{2}, Data: data(0, 0x3c, 0, 0xc0)}},
		Item{"name", "naïve"},
		Item{"bf", Tensor{DType: BF16, Shape: []int64{1, 2, 1}, Data: data(0x80, 0x3f, 0, 0x40)}},
		Item{"yes", true}, Item{"no", false},
		Item{"ids", Tensor{DType: Int64, Shape: []int64{2, 2}, Data: data(append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte{255}, 24)...)...)}},
		Item{"empty", Tensor{DType: FP32, Shape: []int64{0, 4}, Data: data()}},
	)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	script := `
import sys, torch
for kw in ({"weights_only": True}, {"weights_only": True, "mmap": True}, {"weights_only": False, "mmap": True}):
    d = torch.load(sys.argv[1], **kw)
    assert list(d) == ["half", "name", "bf", "yes", "no", "ids", "empty"], list(d)
    assert torch.equal(d["half"], torch.tensor([1, -2], dtype=torch.float16)), d["half"]
    assert torch.equal(d["bf"], torch.tensor([[[1.], [2.]]], dtype=torch.bfloat16)), d["bf"]
    assert torch.equal(d["ids"], torch.tensor([[1, -1], [-1, -1]])), d["ids"]
    assert d["empty"].shape == (0, 4) and d["empty"].dtype == torch.float32
    assert d["name"] == "na\u00efve" and d["yes"] is True and d["no"] is False
print("fine")
`
	out, err := exec.Command(python, "-c", script, path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "fine") {
		t.Fatalf("%v: %s", err, out)
	}
}
