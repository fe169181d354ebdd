package vllm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/enginetest"
)

func TestKey(t *testing.T) {
	v, url := server(t, func(v *enginetest.VLLM) { v.Key = "sesame" })
	b := client(t, v.Dir, []string{url}, func(o *Options) { o.APIKey = "sesame" })
	if rows, _, err := serve(t, b, []uint32{1}); err != nil || len(rows[0]) == 0 {
		t.Errorf("with the key: %v", err)
	}
	b = client(t, v.Dir, []string{strings.Replace(url, "http://", "http://user:hunter2@", 1)}, func(o *Options) { o.APIKey = "hunter2" })
	_, err := b.Describe(t.Context())
	if err == nil || errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "api_key_env") {
		t.Errorf("with another key: %v, want a lasting error that says where it is set", err)
	}
	if strings.Contains(fmt.Sprint(err), "hunter2") {
		t.Errorf("the key is shown: %v", err)
	}
}

// TestDescribe: one endpoint of two is enough to begin; two models are not one.
func TestDescribe(t *testing.T) {
	v1, one := server(t)
	v2, two := server(t, func(v *enginetest.VLLM) { v.Gen, v.MaxLen = 2, 301 })
	b := client(t, v1.Dir, []string{one, two + "/v1/"})
	i, err := b.Describe(t.Context())
	if err != nil || i.Version != "0.22.0+0.32.0" || i.MaxTokens != 300 || i.Slots != 2 || i.Model != "target" {
		t.Errorf("%+v, %v", i, err)
	}
	v2.Kill()
	if i, err = b.Describe(t.Context()); err != nil || i.MaxTokens != 800 || i.Slots != 2 {
		t.Errorf("one down: %+v, %v", i, err)
	}
	_, three := server(t, func(v *enginetest.VLLM) { v.Model = "another" })
	if _, err := client(t, v1.Dir, []string{one, three}).Describe(t.Context()); err == nil {
		t.Error("two models pass for one")
	}
	if _, err := client(t, v1.Dir, []string{one}, func(o *Options) { o.Model = "missing" }).Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "target") {
		t.Errorf("a model that is not served: %v", err)
	}
}

// TestOtherMount: the server calls the directory by another name.
func TestOtherMount(t *testing.T) {
	v, url := server(t)
	mount := filepath.Join(t.TempDir(), "mount")
	if err := os.Symlink(v.Dir, mount); err != nil {
		t.Fatal(err)
	}
	b := client(t, mount, []string{url})
	rows, errs, err := serve(t, b, []uint32{1, 2})
	if err != nil || !bytes.Equal(rows[0], enginetest.Rows([]uint32{1, 2}, layers, 32)) {
		t.Errorf("%v %v", err, errs)
	}
	nothingLeft(t, v, b)
}

func TestOptions(t *testing.T) {
	ok := Options{Endpoints: []string{"http://a:1"}, Hidden: 8, Layers: 4, Capture: []int{1, 4}}
	if _, err := New(ok); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"none":      func(o *Options) { o.Endpoints = nil },
		"no URL":    func(o *Options) { o.Endpoints = []string{"a:8000"} },
		"twice":     func(o *Options) { o.Endpoints = []string{"http://a:1", "http://a:1/v1/"} },
		"dtype":     func(o *Options) { o.DType = "fp8" },
		"no hidden": func(o *Options) { o.Hidden = 0 },
		"no layers": func(o *Options) { o.Capture = nil },
		"beyond":    func(o *Options) { o.Capture = []int{5} },
		"twice 2":   func(o *Options) { o.Capture = []int{2, 2} },
	} {
		o := ok
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
