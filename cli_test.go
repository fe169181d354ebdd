package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/fixtures"
	"eaglebatch/internal/cli"
)

// result is how a command line ended.
type result struct {
	code     int
	out, err string
}

// eagle runs the command line in this process.
func eagle(t testing.TB, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := cli.Main(append([]string{"eaglebatch"}, args...), strings.NewReader(""), &out, &errs)
	return result{code, out.String(), errs.String()}
}

// want fails unless the command ended with code.
func (r result) want(t testing.TB, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	return r
}

// says fails unless stderr holds every text.
func (r result) says(t testing.TB, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(r.err, s) {
			t.Errorf("stderr lacks %q:\n%s", s, r.err)
		}
	}
}

// quickstart copies the quickstart and returns its configuration and workspace.
func quickstart(t testing.TB) (config, work string) {
	t.Helper()
	config, err := fixtures.Quickstart(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return config, filepath.Join(filepath.Dir(config), "work")
}

// edit replaces text in a file; the text must be there.
func edit(t testing.TB, path, from, to string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(from)) {
		t.Fatalf("%s lacks %q:\n%s", path, from, b)
	}
	if err := os.WriteFile(path, bytes.Replace(b, []byte(from), []byte(to), 1), 0o666); err != nil {
		t.Fatal(err)
	}
}

// stat is what the tests read of stat --json.
type stat struct {
	Live   bool
	Phases []struct{ Name, State string }
	Plan   struct {
		Samples      int64
		NewSamples   int64 `json:"new_samples"`
		Reused       int64
		Decision     string
		BytesPerTok  int64 `json:"bytes_per_token"`
		ShortBy      int64 `json:"short_by"`
		RawBytes     int64 `json:"raw_bytes"`
		Expected     int64 `json:"expected_bytes"`
		Blobs        int64
		MaxTokens    int64 `json:"max_tokens"`
		DatasetsDrop []string
		DType        string
	}
	Datasets []struct {
		Name                                                          string
		Lines, Accepted, Duplicates, Blank, Rejected, Samples, Tokens int64
	}
	Generations []struct {
		ID                      uint32
		Name, State, Kind, Path string
		Samples, Tokens         int64
		Bytes, Blobs            int64
		Quarantined             int64
		Needs                   []uint32
	}
	Extract struct {
		SamplesDone  int64 `json:"samples_done"`
		SamplesTotal int64 `json:"samples_total"`
		Left         int64
		MissingBytes int64 `json:"missing_bytes"`
	}
	Next string
}

func statOf(t testing.TB, config string) (s stat) {
	t.Helper()
	r := eagle(t, "stat", "--json", "-c", config).want(t, 0)
	if err := json.Unmarshal([]byte(r.out), &s); err != nil {
		t.Fatalf("%v in %s", err, r.out)
	}
	return s
}
