package main

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fieldName is how fields of reports are spelt.
var fieldName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// TestReportFields holds the fields of every --json report to the list in
// fixtures/reports.txt: they are only ever added to. UPDATE_REPORTS=1 writes it.
func TestReportFields(t *testing.T) {
	const list = "fixtures/reports.txt"
	config, _ := quickstart(t)
	eagle(t, "run", "-c", config).want(t, 0)
	var got []string
	for _, args := range [][]string{
		{"stat"}, {"plan"}, {"plan", "--what-if"}, {"gc"}, {"generations"}, {"audit"}, {"check"}, {"check", "--full"},
		{"cat", "2:0"}, {"compare", "2", "2"}, {"doctor"}, {"export", "--to", "jsonl", "--out", t.TempDir()},
		{"export", "--to", "modelopt", "--out", t.TempDir() + "/x"},
	} {
		r := eagle(t, append(slices.Clone(args), "-c", config, "--json")...).want(t, 0)
		var doc any
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		name := args[0]
		for _, a := range args[1:] {
			if strings.HasPrefix(a, "--") || a == "jsonl" || a == "modelopt" {
				if a != "--out" {
					name += " " + a
				}
			}
		}
		fields := map[string]bool{}
		collect(t, name+" ", doc, fields)
		if name != "doctor" { // whose fields depend on the machine
			got = slices.AppendSeq(got, maps.Keys(fields))
		}
	}
	slices.Sort(got)
	if os.Getenv("UPDATE_REPORTS") != "" {
		if err := os.WriteFile(list, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for _, f := range want {
		if !slices.Contains(got, f) {
			t.Errorf("%s is gone", f)
		}
	}
	for _, f := range got {
		if !slices.Contains(want, f) {
			t.Errorf("%s is new: add it with UPDATE_REPORTS=1 go test -run TestReportFields .", f)
		}
	}
}

// collect adds the path of every field below v.
func collect(t *testing.T, path string, v any, into map[string]bool) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if k == "gauges" || k == "notes" { // as the run went
				continue
			}
			if !fieldName.MatchString(k) {
				t.Errorf("%s: field %q is not in snake case", path, k)
			}
			collect(t, path+"."+k, x, into)
		}
	case []any:
		for _, x := range v {
			collect(t, path+"[]", x, into)
		}
	default:
		into[path] = true
	}
}
