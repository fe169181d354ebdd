package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/internal/fsx"
	"eaglebatch/internal/human"

	"golang.org/x/sys/unix"
)

// vllmServe is the command that starts a vLLM server as this configuration
// needs it: its dtype and layers, no prefix cache and no chunked prefill (both cost rows),
// the cap and room for one sampled token.
func (j *job) vllmServe() string {
	limit := int(j.cfg.Plan.MaxTokens)
	if limit == 0 {
		limit = cmp.Or(j.model.MaxPos, 8192)
	}
	length := limit + 1
	if limit == j.model.MaxPos {
		length = limit // a server does not start with more, and takes one token less
	}
	layers := make([]string, len(j.layers))
	for i, l := range j.layers {
		layers[i] = strconv.Itoa(l)
	}
	dir := cmp.Or(j.cfg.Extract.SharedDir, "/dev/shm/eaglebatch")
	return strings.Join([]string{
		"vllm serve " + quote(j.cfg.Model) + " --dtype " + map[string]string{"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[j.engineDType(j.cfg.Plan.DType)],
		fmt.Sprintf("--max-model-len %d --max-num-batched-tokens %d", length, max(length, 8192)),
		"--no-enable-prefix-caching --no-enable-chunked-prefill",
		`--speculative-config '{"method":"extract_hidden_states","num_speculative_tokens":1,"draft_model_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[` + strings.Join(layers, ",") + `]}}}'`,
		`--kv-transfer-config '{"kv_connector":"ExampleHiddenStatesConnector","kv_role":"kv_producer","kv_connector_extra_config":{"shared_storage_path":"` + dir + `"}}'`,
	}, " \\\n    ")
}

// examineVLLM shows how to start the server and looks at the directory that it
// shares with this program: room for what is in flight, and leave to delete.
func (j *job) examineVLLM() []finding {
	out := []finding{{"vllm server", "ok", "start it with:\n    " + j.vllmServe()}}
	dir := j.cfg.Extract.SharedDir
	if dir == "" {
		return append(out, finding{"shared directory", "fail", "extract.shared_dir is not set: it is where the server writes states and this program reads them"})
	}
	sp, err := fsx.SpaceAt(existing(dir))
	if err != nil {
		return append(out, verdict("shared directory", "", err))
	}
	f := finding{"shared directory", "ok", fmt.Sprintf("%s: %s free", dir, human.Bytes(sp.Free))}
	longest := max(j.cfg.Plan.MaxTokens, 8192) * int64(len(j.layers)*j.model.Hidden*2)
	switch {
	case unix.Access(existing(dir), unix.W_OK) != nil:
		f.Verdict, f.Detail = "fail", f.Detail+": not writable, so that files could not be deleted once they are stored; run both as one user"
	case sp.Free < 4*longest:
		f.Verdict, f.Detail = "warn", f.Detail+fmt.Sprintf(": one sample may take %s, and several are in flight", human.Bytes(longest))
	}
	if st, err := os.Stat(dir); err == nil && st.Mode()&os.ModeSticky != 0 && os.Getuid() != 0 {
		f.Verdict, f.Detail = "warn", f.Detail+": the sticky bit is set, so that files of a server under another user cannot be deleted"
	}
	return append(out, f)
}

// examineKeyFile wants a key that its owner alone can read.
func examineKeyFile(path string) finding {
	st, err := os.Stat(path)
	if err != nil {
		return verdict("api key", "", err)
	}
	f := finding{"api key", "ok", path}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		f.Verdict, f.Detail = "warn", fmt.Sprintf("%s: mode %04o, others can read it: chmod 600 %s", path, mode, quote(path))
	}
	return f
}

// examineServers holds what vLLM servers say of themselves to the configuration,
// each by itself.
func (j *job) examineServers(ctx context.Context, b backend.Backend) (out []finding) {
	v, ok := b.(*vllm.Backend)
	if !ok {
		return nil
	}
	for slot := range j.cfg.Extract.Endpoints {
		f := finding{What: "vllm settings", Verdict: "ok"}
		s, err := v.Settings(ctx, slot)
		switch bad := v.Differ(s); {
		case errors.Is(err, vllm.ErrNotTold):
			f.Detail = v.Name(slot) + ": does not tell what it was started with (it does with VLLM_SERVER_DEV_MODE=1); that its layers are " +
				"those of the command above cannot be seen"
		case err != nil:
			f.Verdict, f.Detail = "fail", err.Error()
		case len(bad) > 0:
			f.Verdict, f.Detail = "fail", v.Name(slot)+": "+strings.Join(bad, "; ")
		default:
			layers := "layers not told"
			if s.Layers != nil {
				layers = fmt.Sprintf("layers %v", s.Layers)
			}
			f.Detail = fmt.Sprintf("%s: %s, %s, %s into %s, quantization %s", v.Name(slot), layers, s.DType, s.Connector, s.SharedDir, cmp.Or(s.Quantization, "none"))
		}
		out = append(out, f)
	}
	return out
}

// suitServers fails where a server says that it was started with something else
// than is wanted. What it does not say is no reason to.
func (j *job) suitServers(ctx context.Context, b backend.Backend) error {
	v, ok := b.(*vllm.Backend)
	if !ok {
		return nil
	}
	for slot := range j.cfg.Extract.Endpoints {
		s, err := v.Settings(ctx, slot)
		if err != nil {
			continue
		}
		if bad := v.Differ(s); len(bad) > 0 {
			return withHint(fmt.Errorf("%s: %s: %w", v.Name(slot), strings.Join(bad, "; "), backend.ErrUnavailable), "%s", j.command(j.c, "doctor"))
		}
	}
	return nil
}
