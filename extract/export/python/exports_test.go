package python_test

import (
	"path/filepath"
	"testing"

	"eaglebatch/extract/export/trainer"
	"eaglebatch/extract/exporter"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/progress"
)

// writeExports lays some of the cases out for every trainer, beside them:
// CASE/export-LAYOUT.
func writeExports(t *testing.T, dir string) {
	t.Helper()
	for name, generation := range map[string]string{"lz4-planes-bf16": "000001", "dense-fp16": "000001", "lz4-fp8": "000001", "older": "000004", "selected": "000001"} {
		for _, layout := range trainer.Names() {
			_, err := exporter.States(t.Context(), exporter.StatesOptions{
				FS: &fsx.FS{}, Generation: filepath.Join(dir, name, "generations", generation),
				Layout: layout, Dir: filepath.Join(dir, name, "export-"+layout),
			}, progress.Nop{})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
