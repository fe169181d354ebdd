package ingest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"eaglebatch/store"
)

// endings returns how the names of the files end that a directory is searched
// for.
func endings() []string {
	return []string{".jsonl", ".jsonl.gz", ".jsonl.zst", ".jsonl.lz4"}
}

// source is a file to be merged, as it is now.
type source struct {
	path  string
	size  int64
	mtime int64
	info  fs.FileInfo
}

func (s source) row() store.SourceFile {
	return store.SourceFile{Path: s.path, Size: s.size, ModTime: s.mtime}
}

func statSource(path string) (source, error) {
	st, err := os.Stat(path)
	if err != nil {
		return source{}, err
	}
	if !st.Mode().IsRegular() {
		return source{}, fmt.Errorf("%s: is not a regular file", path)
	}
	return source{path: path, size: st.Size(), mtime: st.ModTime().UnixNano(), info: st}, nil
}

// expand returns the files of a dataset: its paths in order, each glob or
// directory in sorted order.
func expand(d Dataset) ([]source, error) {
	if len(d.Paths) == 0 {
		return nil, fmt.Errorf("dataset %q: has no path", d.Name)
	}
	var all []source
	for _, p := range d.Paths {
		paths, err := expandPath(p)
		if err != nil {
			return nil, fmt.Errorf("dataset %q: %w", d.Name, err)
		}
		for _, path := range paths {
			s, err := statSource(path)
			if err != nil {
				return nil, fmt.Errorf("dataset %q: %w", d.Name, err)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// CheckSources fails where a source that is configured is not there or is given
// twice. Whoever gives up a finished merge asks first: it may be the only copy
// of what the sources held.
func CheckSources(o Options) error {
	if err := o.withDefaults().validate(); err != nil {
		return err
	}
	all := make([][]source, len(o.Datasets))
	for i, d := range o.Datasets {
		var err error
		if all[i], err = expand(d); err != nil {
			return err
		}
	}
	return checkTwice(o.Datasets, all)
}

// errNoFiles says that a path of the configuration matches nothing (any more).
var errNoFiles = errors.New("no files there")

func expandPath(p string) ([]string, error) {
	st, err := os.Stat(p)
	switch {
	case err == nil && st.IsDir():
		return walk(p)
	case err == nil:
		return []string{p}, nil
	case !strings.ContainsAny(p, "*?["):
		return nil, fmt.Errorf("%w: %w", errNoFiles, err)
	}
	found, err := filepath.Glob(p)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", p, err)
	}
	slices.Sort(found)
	var all []string
	for _, f := range found {
		if st, err := os.Stat(f); err == nil && st.IsDir() {
			under, err := walk(f)
			if err != nil {
				return nil, err
			}
			all = append(all, under...)
			continue
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: nothing matches %q", errNoFiles, p)
	}
	return all, nil
}

// walk finds the JSON-lines files under dir, links to files included. dir itself
// may be a link; one to a directory below it is refused rather than left out.
func walk(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir+string(filepath.Separator), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			if st, err := os.Stat(path); err == nil && st.IsDir() {
				return fmt.Errorf("%s: is a link to a directory, which is not followed: name it as a path of its own", path)
			}
		}
		for _, end := range endings() {
			if !e.IsDir() && strings.HasSuffix(path, end) {
				all = append(all, path)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: %s and below hold no %s", errNoFiles, dir, strings.Join(endings(), ", "))
	}
	slices.Sort(all)
	return all, nil
}

// checkTwice refuses one file under two names or in two datasets: its samples
// would silently count as duplicates, or be there twice.
func checkTwice(datasets []Dataset, sources [][]source) error {
	type inode struct{ dataset, path string }
	bySize := map[int64][]inode{}
	infos := map[string]fs.FileInfo{}
	for i, d := range datasets {
		for _, s := range sources[i] {
			if s.info == nil {
				continue // merged before and gone since
			}
			for _, o := range bySize[s.size] {
				if os.SameFile(infos[o.path], s.info) {
					return fmt.Errorf("%s of dataset %q is the same file as %s of dataset %q: give each file once", s.path, d.Name, o.path, o.dataset)
				}
			}
			bySize[s.size] = append(bySize[s.size], inode{d.Name, s.path})
			infos[s.path] = s.info
		}
	}
	return nil
}
