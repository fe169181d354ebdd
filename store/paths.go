package store

import (
	"fmt"
	"path/filepath"

	"eaglebatch/internal/fsx"
)

const (
	samplesDir = "samples"
	plansDir   = "plans"
	ordersDir  = "orders"
	trashDir   = "trash"
	rejectsDir = "rejects"
	logsDir    = "logs"
)

// Dir returns the workspace's directory, as it was opened.
func (w *Workspace) Dir() string { return w.dir }

// FS returns the filesystem that all changes go through.
func (w *Workspace) FS() *fsx.FS { return w.opt.FS }

// Memory returns the bound for Badger and caches, in bytes.
func (w *Workspace) Memory() int64 { return w.opt.Memory }

// RootID returns the workspace's identity, which adopted and trashed
// directories carry too.
func (w *Workspace) RootID() string { return w.marker.RootID }

// SamplesDir returns samples/NNNNNN.
func (w *Workspace) SamplesDir(gen uint32) string {
	return filepath.Join(w.dir, samplesDir, number(gen))
}

// GenerationDir returns the directory of r, resolving a path that is relative
// to the workspace.
func (w *Workspace) GenerationDir(r GenerationRow) string {
	if filepath.IsAbs(r.Path) {
		return r.Path
	}
	return filepath.Join(w.dir, r.Path)
}

// PlanPath returns plans/NNNNNN.ebi.
func (w *Workspace) PlanPath(id uint32) string {
	return filepath.Join(w.dir, plansDir, number(id)+".ebi")
}

// OrderPath returns orders/NNNNNN.ebo.
func (w *Workspace) OrderPath(id uint32) string {
	return filepath.Join(w.dir, ordersDir, number(id)+".ebo")
}

// TrashDir returns trash.
func (w *Workspace) TrashDir() string { return filepath.Join(w.dir, trashDir) }

// RejectsPath returns rejects/DATASET.jsonl.
func (w *Workspace) RejectsPath(dataset string) string {
	return filepath.Join(w.dir, rejectsDir, dataset+".jsonl")
}

// LogsDir returns logs.
func (w *Workspace) LogsDir() string { return filepath.Join(w.dir, logsDir) }

func number(n uint32) string { return fmt.Sprintf("%06d", n) }
