package native

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"eaglebatch/extract/model"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/extract/model/safetensors"
	"eaglebatch/extract/model/tensor"
)

type modelShape struct{ hidden, heads, kvHeads, headDim, ffn int }

// randomModel writes a Qwen3 of one layer: norms of heads, no biases.
func randomModel(t *testing.T, s modelShape) string {
	t.Helper()
	const vocab = 40
	r := rand.New(rand.NewPCG(1, uint64(s.hidden)))
	var ts []tensor.Tensor
	add := func(name string, shape ...int) {
		n, scale := shape[0], 0.0
		if len(shape) == 2 {
			n, scale = n*shape[1], 1/math.Sqrt(float64(shape[1]))
		}
		var b []byte
		for range n {
			v := r.NormFloat64() * scale
			if len(shape) == 1 {
				v = math.Exp(0.4 * r.NormFloat64())
			}
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		}
		ts = append(ts, tensor.Tensor{Name: name, Type: tensor.F32, Shape: shape, Data: b})
	}
	const at = "model.layers.0."
	add("model.embed_tokens.weight", vocab, s.hidden)
	for _, name := range []string{"input_layernorm", "post_attention_layernorm"} {
		add(at+name+".weight", s.hidden)
	}
	for _, name := range []string{"q_norm", "k_norm"} {
		add(at+"self_attn."+name+".weight", s.headDim)
	}
	add(at+"self_attn.q_proj.weight", s.heads*s.headDim, s.hidden)
	add(at+"self_attn.k_proj.weight", s.kvHeads*s.headDim, s.hidden)
	add(at+"self_attn.v_proj.weight", s.kvHeads*s.headDim, s.hidden)
	add(at+"self_attn.o_proj.weight", s.hidden, s.heads*s.headDim)
	add(at+"mlp.gate_proj.weight", s.ffn, s.hidden)
	add(at+"mlp.up_proj.weight", s.ffn, s.hidden)
	add(at+"mlp.down_proj.weight", s.hidden, s.ffn)
	var b bytes.Buffer
	if err := safetensors.Write(&b, ts, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := fmt.Sprintf(`{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":%d,"num_attention_heads":%d,"num_key_value_heads":%d,
		"head_dim":%d,"intermediate_size":%d,"num_hidden_layers":1,"vocab_size":%d,"max_position_embeddings":512}`, s.hidden, s.heads, s.kvHeads, s.headDim, s.ffn, vocab)
	for name, data := range map[string][]byte{"config.json": []byte(config), "model.safetensors": b.Bytes()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestShapes holds sizes that fill no panel, vector or block of k, each with
// every kernel, to the reference; those of fp32 to the same bytes.
func TestShapes(t *testing.T) {
	for _, s := range []modelShape{
		{4, 1, 1, 4, 4}, {68, 3, 1, 20, 36}, {100, 2, 2, 80, 52}, {36, 4, 2, 96, 20}, {64, 1, 1, 112, 100}, {388, 2, 1, 12, 788}, {32, 5, 5, 160, 416},
	} {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			path := randomModel(t, s)
			d, err := model.OpenDecoder(path)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			ids := samples(40, 109)[0]
			var want []float32
			for _, layers := range reference(d, ids) {
				for _, v := range layers[1] {
					want = append(want, float32(v))
				}
			}
			o := Options{Capture: []int{1}, DType: "fp32", Threads: 2}
			var first []byte
			for _, set := range kernel.Sets() {
				o.Kernels = set.Name()
				got := serve(t, path, o, ids)[0]
				if _, _, err := compare(floats(got), want, s.hidden); err != nil {
					t.Errorf("%s: %v", set.Name(), err)
				}
				if first == nil {
					first = got
				}
				if !bytes.Equal(got, first) {
					t.Errorf("%s gives other bytes than %s", set.Name(), kernel.Best().Name())
				}
			}
			o.Kernels, o.Compute = "", "bf16"
			for _, f := range kernel.BF16s() {
				o.BF16 = f.Name()
				if cosine, rel, _ := compare(floats(serve(t, path, o, ids)[0]), want, s.hidden); !(cosine > 0.999 && rel < 0.05) {
					t.Errorf("bf16 %s: cosine %.6f, relative error %.3g", f.Name(), cosine, rel)
				}
			}
		})
	}
}

// TestNotFinite: an infinite weight spoils what depends on it and nothing
// else, with every kernel alike, so that the row is seen and refused later.
func TestNotFinite(t *testing.T) {
	path := randomModel(t, modelShape{64, 2, 1, 32, 96})
	file := filepath.Join(path, "model.safetensors")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	at := f.Data // the embeddings come first: value 3 of token 7, then token 8 all zeros
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	const token = 7
	for _, value := range []float32{float32(math.Inf(1)), float32(math.NaN())} {
		bad := bytes.Clone(good)
		binary.LittleEndian.PutUint32(bad[at+4*(token*64+3):], math.Float32bits(value))
		clear(bad[at+4*8*64:][:4*64])
		if err := os.WriteFile(file, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		ids := []uint32{1, 8, 8, 3, token, 2, 5}
		for _, set := range kernel.Sets() {
			o := Options{Capture: []int{1}, DType: "fp32", Kernels: set.Name()}
			all := serve(t, path, o, ids, []uint32{1, 8, 8, 3}, samples(7, 50)[0])
			// Rows before the token may be lost too: what a weight of 0 multiplies
			// counts, as in transformers.
			for i, v := range floats(all[0])[4*64:] {
				if v-v == 0 {
					t.Fatalf("%g, %s: value %d of row %d is %g", value, set.Name(), i%64, 4+i/64, v)
				}
			}
			for j, got := range all[1:] {
				for i, v := range floats(got) {
					if v-v != 0 {
						t.Fatalf("%g, %s: value %d of sample %d is %g, by another sample's fault", value, set.Name(), i, j+1, v)
					}
				}
			}
		}
	}
}
