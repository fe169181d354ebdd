package vllm

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"eaglebatch/extract/backend/enginetest"
)

// TestSettings reads what vLLM 0.32.0 answered, shortened.
func TestSettings(t *testing.T) {
	text, err := os.ReadFile("testdata/server_info-0.32.0.json")
	if err != nil {
		t.Fatal(err)
	}
	v, url := server(t, func(v *enginetest.VLLM) { v.Info = string(text) })
	b := client(t, v.Dir, []string{url})
	s, err := b.Settings(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.DType != "bf16" || s.Method != "extract_hidden_states" || s.Connector != "CPUHiddenStatesConnector" || s.SharedDir != "/dev/shm/hs" ||
		s.Quantization != "" || s.PrefixCaching == nil || *s.PrefixCaching || s.ChunkedPrefill == nil || *s.ChunkedPrefill || s.Layers != nil {
		t.Errorf("%+v", s)
	}
	if d := b.Differ(s); len(d) > 0 {
		t.Errorf("differs: %q", d)
	}
	v, url = server(t)
	if _, err := client(t, v.Dir, []string{url}).Settings(t.Context(), 0); !errors.Is(err, ErrNotTold) {
		t.Errorf("in production mode: %v, want ErrNotTold", err)
	}
}

func TestDiffer(t *testing.T) {
	on := true
	b := client(t, t.TempDir(), []string{"http://a:1"})
	for want, s := range map[string]Settings{
		"layers [1 5 11]": {Layers: []int{1, 5, 11}},
		"fp16":            {DType: "fp16"},
		"eagle3":          {Method: "eagle3"},
		"prefix caching":  {PrefixCaching: &on},
	} {
		if d := b.Differ(s); len(d) != 1 || !strings.Contains(d[0], want) {
			t.Errorf("%q, want %q", d, want)
		}
	}
}

func TestLayersIn(t *testing.T) {
	for text, want := range map[string][]int{
		`{"hf_config":{"eagle_aux_hidden_state_layer_ids":[2,30,58,61]}}`:                             {2, 30, 58, 61},
		`{"hf_config":"Config {\n  \"eagle_aux_hidden_state_layer_ids\": [\n    2,\n    30\n  ]\n}"}`: {2, 30},
		`hf_overrides={'eagle_aux_hidden_state_layer_ids': (1, 29)}`:                                  {1, 29},
		`{"layers":[1]}`: nil,
	} {
		if got := layersIn(text); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
