package vllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"eaglebatch/extract/backend/link"
)

// Settings are what a server says it was started with, as far as it matters to
// the states. What it does not say is nil or "".
type Settings struct {
	DType          string // bf16, fp16, fp32, or as the server calls it
	Method         string // of speculative decoding
	Connector      string
	SharedDir      string
	Quantization   string
	PrefixCaching  *bool
	ChunkedPrefill *bool
	Layers         []int
}

// ErrNotTold says that a server does not tell its settings: they are there in
// development mode (VLLM_SERVER_DEV_MODE=1) only.
var ErrNotTold = errors.New("the server does not tell its settings")

// vLLM gathers facts about its machine before it answers.
const settling = 2 * time.Minute

// Settings asks an endpoint what it was started with.
func (b *Backend) Settings(ctx context.Context, slot int) (Settings, error) {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	hc := link.New(1)
	defer hc.Close()
	var info struct {
		Config json.RawMessage `json:"vllm_config"`
	}
	err := b.get(ctx, hc, slot, "/server_info?config_format=json", &info)
	var se *link.StatusError
	switch {
	case errors.As(err, &se) && (se.Code == http.StatusNotFound || se.Code == http.StatusMethodNotAllowed):
		return Settings{}, ErrNotTold
	case err != nil:
		return Settings{}, b.ends[slot].Unavailable("/server_info", err)
	}
	return readSettings(info.Config), nil
}

func readSettings(text []byte) (s Settings) {
	var c struct {
		Model struct {
			DType        string `json:"dtype"`
			Quantization any    `json:"quantization"`
		} `json:"model_config"`
		Cache struct {
			Prefix *bool `json:"enable_prefix_caching"`
		} `json:"cache_config"`
		Scheduler struct {
			Chunked *bool `json:"enable_chunked_prefill"`
		} `json:"scheduler_config"`
		Speculative struct {
			Method string `json:"method"`
		} `json:"speculative_config"`
		KV struct {
			Connector string `json:"kv_connector"`
			Extra     struct {
				Dir string `json:"shared_storage_path"`
			} `json:"kv_connector_extra_config"`
		} `json:"kv_transfer_config"`
	}
	// Older servers describe themselves in another form: then nothing is known.
	_ = json.Unmarshal(text, &c)
	s = Settings{
		Method: c.Speculative.Method, Connector: c.KV.Connector, SharedDir: c.KV.Extra.Dir,
		PrefixCaching: c.Cache.Prefix, ChunkedPrefill: c.Scheduler.Chunked, Layers: layersIn(string(text)),
	}
	if c.Model.Quantization != nil {
		s.Quantization = fmt.Sprint(c.Model.Quantization)
	}
	s.DType = strings.TrimPrefix(c.Model.DType, "torch.")
	for name, torch := range map[string]string{"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"} {
		if s.DType == torch {
			s.DType = name
		}
	}
	return s
}

// The key may lie in an object, or in one that was printed into a string.
var layerList = regexp.MustCompile(`eagle_aux_hidden_state_layer_ids\\?["']?\s*[:=]\s*[\[(]((?:\s|\\n|\d|,)*)[\])]`)

// layersIn finds the layer ids in a server's description of itself.
func layersIn(text string) (layers []int) {
	m := layerList.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	for f := range strings.FieldsFuncSeq(strings.ReplaceAll(m[1], `\n`, " "), func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }) {
		if n, err := strconv.Atoi(f); err == nil {
			layers = append(layers, n)
		}
	}
	return layers
}

// Differ lists in what way settings are not those that the client wants.
func (b *Backend) Differ(s Settings) (out []string) {
	add := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(s.Layers != nil && !slices.Equal(s.Layers, b.o.Capture), "it captures layers %v, wanted are %v", s.Layers, b.o.Capture)
	add(s.DType != "" && s.DType != b.o.DType, "it computes in %s, the plan has %s", s.DType, b.o.DType)
	add(s.Method != "" && s.Method != "extract_hidden_states", "its speculative method is %s, not extract_hidden_states", s.Method)
	add(s.PrefixCaching != nil && *s.PrefixCaching, "prefix caching is on, which costs rows: --no-enable-prefix-caching")
	return out
}
