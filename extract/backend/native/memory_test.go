package native

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model/kernel"
)

// emptyModel makes a model of SmolLM2-135M's shape whose weights are a hole in
// a file: zeros, which take as much memory as others.
func emptyModel(t *testing.T) string {
	t.Helper()
	const hidden, ffn, kv, vocab, layers = 576, 1536, 192, 49152, 30
	header, end := map[string]any{}, 0
	add := func(name string, shape ...int) {
		n := 4
		for _, d := range shape {
			n *= d
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{end, end + n}}
		end += n
	}
	add("model.embed_tokens.weight", vocab, hidden)
	add("model.norm.weight", hidden)
	for l := range layers {
		at := fmt.Sprintf("model.layers.%d.", l)
		for _, name := range []string{"input_layernorm", "post_attention_layernorm"} {
			add(at+name+".weight", hidden)
		}
		for name, n := range map[string]int{"q": hidden, "k": kv, "v": kv, "o": hidden} {
			add(at+"self_attn."+name+"_proj.weight", n, hidden)
		}
		add(at+"mlp.gate_proj.weight", ffn, hidden)
		add(at+"mlp.up_proj.weight", ffn, hidden)
		add(at+"mlp.down_proj.weight", hidden, ffn)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, bytes.Repeat([]byte(" "), (8-len(raw)%8)%8)...)
	raw = append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...)
	dir := t.TempDir()
	weights := filepath.Join(dir, "model.safetensors")
	if err := os.WriteFile(weights, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(weights, int64(len(raw)+end)); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_act":"silu","hidden_size":%d,"intermediate_size":%d,
		"num_hidden_layers":%d,"vocab_size":%d,"num_attention_heads":9,"num_key_value_heads":3,"max_position_embeddings":65536,
		"rms_norm_eps":1e-5,"rope_theta":100000,"tie_word_embeddings":true}`, hidden, ffn, layers, vocab)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// anonymous is what this process holds of memory that no file backs.
func anonymous() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, errors.New("/proc/self/status has no RssAnon")
}

// peakDuring returns by how much fn raises the anonymous memory at most.
func peakDuring(t *testing.T, fn func()) int64 {
	t.Helper()
	debug.FreeOSMemory()
	before, err := anonymous()
	if err != nil {
		t.Skipf("no count of anonymous memory: %v", err)
	}
	stop, peak := make(chan struct{}), before
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			if now, err := anonymous(); err == nil {
				peak = max(peak, now)
			}
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	fn()
	close(stop)
	wg.Wait()
	return peak - before
}

// TestPeakMemory holds what a process takes to what Need says, on one long
// sample: 8192 tokens and, where EAGLEBATCH_LONG is set, 32768, both within 1.5
// GiB of the weights.
func TestPeakMemory(t *testing.T) {
	if kernel.Best().Name() == "generic" {
		t.Skip("long samples take too long without vector kernels")
	}
	path := emptyModel(t)
	for _, tokens := range []int{8192, 32768} {
		for _, compute := range []string{"fp32", "bf16"} {
			t.Run(fmt.Sprintf("%s/%d", compute, tokens), func(t *testing.T) {
				if tokens > 8192 && os.Getenv("EAGLEBATCH_LONG") == "" {
					t.Skip("computes for half a minute: set EAGLEBATCH_LONG=1 to run it")
				}
				testPeakMemory(t, path, tokens, Options{Capture: []int{0, 1}, Compute: compute, Threads: 2, Memory: 1536 << 20})
			})
		}
	}
}

func testPeakMemory(t *testing.T, path string, tokens int, o Options) {
	b, err := New(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	need := b.Need()
	if need.MaxTokens < tokens {
		t.Fatalf("%d bytes allow %d tokens, want %d", o.Memory, need.MaxTokens, tokens)
	}
	in := make(chan backend.Request, 1)
	in <- backend.Request{Tokens: samples(49152, tokens)[0]}
	close(in)
	rows := 0
	took := peakDuring(t, func() {
		err = b.Serve(t.Context(), 0, in, func(c backend.Chunk) error {
			rows += c.Rows
			return c.Err
		})
	})
	if err != nil || rows != tokens {
		t.Fatalf("%d rows, %v", rows, err)
	}
	stated := need.Fixed + int64(tokens)*need.Token
	t.Logf("%d MiB stated, %d MiB taken, weights of %d MiB apart", stated>>20, took>>20, need.Weights>>20)
	// The Go runtime has some of its own; the race detector as much again.
	if took > 2*stated+64<<20 || took > o.Memory {
		t.Errorf("%d bytes are taken, %d were stated", took, stated)
	}
}
