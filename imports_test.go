package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// law says which packages of this module a package may import; "/…" stands for
// everything below. A package without a rule fails the test.
var law = []struct {
	pkg   string
	allow []string
}{
	{".", []string{"internal/cli"}},
	{"internal/cli", []string{"..."}},
	{"internal/pipeline", []string{"store", "internal/progress", "internal/human"}},
	{"internal/config", []string{"internal/human"}},
	{"internal/human", nil},
	{"internal/progress", []string{"internal/human"}},
	{"internal/fault", nil},
	{"internal/fsx", []string{"internal/fault"}},
	{"internal/compress", nil},
	{"ingest", []string{"store", "store/samples", "internal/progress", "internal/human", "internal/fault", "internal/fsx", "internal/compress"}},
	{"permute", []string{"store", "store/samples", "internal/progress", "internal/fault", "internal/fsx"}},
	{"plan", []string{"store", "store/retain", "store/samples", "store/blob", "store/genindex", "internal/progress", "internal/human", "internal/fault", "internal/fsx"}},
	{"gc", []string{"store", "store/retain", "store/genindex", "internal/progress", "internal/human", "internal/fault", "internal/fsx"}},
	{"extract", []string{"store", "store/samples", "store/blob", "store/genindex", "extract/backend", "extract/model", "extract/export", "internal/progress", "internal/human", "internal/fault", "internal/fsx", "internal/compress"}},
	{"extract/model", []string{"extract/model/..."}},
	{"extract/model/...", []string{"extract/model/..."}},
	{"extract/backend", nil},
	{"extract/backend/native/...", []string{"extract/backend", "extract/backend/native/...", "extract/model/...", "internal/human"}},
	{"extract/backend/...", []string{"extract/backend/..."}},
	{"extract/export", []string{"internal/fsx", "internal/fault"}},
	{"extract/export/...", []string{"extract/export/...", "extract/model/tensor", "internal/fsx", "internal/fault", "internal/compress"}},
	{"extract/exporter", []string{"store/codec", "extract/model/safetensors", "extract/model/tensor", "store", "store/samples", "store/blob", "store/genindex", "store/states", "extract/export/...", "internal/progress", "internal/fault", "internal/fsx", "internal/compress"}},
	{"store/codec/...", []string{"store/codec/..."}},
	{"store/blob", []string{"store/codec", "internal/fault", "internal/fsx"}},
	{"store/genindex", []string{"store/blob", "internal/fault", "internal/fsx"}},
	{"store/states", []string{"store/blob", "store/genindex"}},
	{"store/samples", []string{"internal/fault", "internal/fsx"}},
	{"store", []string{"store/...", "internal/fault", "internal/fsx"}},
	{"store/retain", []string{"store"}},
	{"store/storetest", []string{"store/...", "internal/fsx", "internal/fault"}},
	{"fixtures", nil},
	{"fixtures/engines/bare", []string{"extract/backend/enginetest"}},
}

// owners lists the modules that only some packages may import.
var owners = map[string][]string{
	"github.com/dgraph-io/badger/v4":    {"store/samples"},
	"go.etcd.io/bbolt":                  {"store"},
	"github.com/vmihailenco/msgpack/v5": {"store", "store/samples"},
	"github.com/urfave/cli/v2":          {"internal/cli"},
	"github.com/pierrec/lz4/v4":         {"store/codec", "internal/compress"},
	"go.yaml.in/yaml/v3":                {"internal/config"},
	"github.com/apache/arrow-go/v18":    {"extract/export/trainer"},
}

const module = "eaglebatch"

// TestSizes: files stay under 400 lines, and functions of what is shipped under 60.
func TestSizes(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		line := func(p token.Pos) int { return set.Position(p).Line }
		if n := line(f.End()); n >= 400 {
			t.Errorf("%s has %d lines", path, n)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if n := line(decl.End()) - line(decl.Pos()) + 1; ok && n >= 60 && !strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s: %s has %d lines", path, fn.Name.Name, n)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func matches(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "..."); ok {
		base = strings.TrimSuffix(base, "/")
		return base == "" || pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	return pattern == pkg
}

func allowed(pkg string) ([]string, bool) {
	for _, r := range law {
		if matches(r.pkg, pkg) {
			return r.allow, true
		}
	}
	return nil, false
}

func TestImports(t *testing.T) {
	eachGoFile(t, func(path, pkg string) {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		allow, ok := allowed(pkg)
		if !ok {
			t.Errorf("%s: package %q has no rule in the import law", path, pkg)
			return
		}
		test := strings.HasSuffix(path, "_test.go")
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if rel, ours := strings.CutPrefix(p, module+"/"); ours && !test {
				ok := false
				for _, a := range allow {
					ok = ok || matches(a, rel)
				}
				if !ok {
					t.Errorf("%s: %s may not import %s", path, pkg, rel)
				}
			}
			for mod, who := range owners {
				if p != mod && !strings.HasPrefix(p, mod+"/") || test {
					continue
				}
				ok := false
				for _, w := range who {
					ok = ok || w == pkg
				}
				if !ok {
					t.Errorf("%s: only %v may import %s", path, who, mod)
				}
			}
		}
	})
}

func eachGoFile(t *testing.T, fn func(path, pkg string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != "." && (strings.HasPrefix(n, ".") || n == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			fn(path, filepath.ToSlash(filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
