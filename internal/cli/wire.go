package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/backend/native"
	"eaglebatch/extract/backend/sglang"
	"eaglebatch/extract/backend/synthetic"
	"eaglebatch/extract/backend/vllm"
	"eaglebatch/extract/backend/worker"
	"eaglebatch/internal/config"
)

// newBackend makes the configured engine.
func (j *job) newBackend(ctx context.Context) (backend.Backend, error) {
	x := j.cfg.Extract
	dtype := j.engineDType(j.cfg.Plan.DType)
	switch x.Backend {
	case "native":
		return native.New(j.cfg.Model, native.Options{
			Capture: j.layers, DType: dtype, Compute: x.Compute, Threads: x.Threads, Memory: int64(x.Memory) / 2,
		})
	case "synthetic":
		return synthetic.New(synthetic.Options{
			Hidden: j.model.Hidden, Layers: j.model.Layers, Vocab: j.model.Vocab, Capture: j.layers, DType: dtype,
			Rate: x.Rate, Slots: max(1, x.Workers), Faults: x.Faults,
		})
	case "worker":
		logs := ""
		if j.ws != nil {
			logs = j.ws.LogsDir()
		}
		return worker.New(worker.Options{
			Command: x.Command, Workers: x.Workers, Model: j.cfg.Model, Capture: j.layers, DType: dtype, Device: x.Device, LogDir: logs,
		})
	case "vllm":
		return j.newVLLM()
	case "sglang":
		key, err := apiKey(x)
		if err != nil {
			return nil, err
		}
		b, err := sglang.New(sglang.Options{
			Endpoints: x.Endpoints, Hidden: j.model.Hidden, Layers: j.model.Layers, Vocab: j.model.Vocab, Capture: j.layers, DType: dtype,
			APIKey: key, Concurrency: x.Concurrency,
		})
		return b, configError(err)
	}
	return nil, fmt.Errorf("%w: extract.backend: %q is not known", config.ErrConfig, x.Backend)
}

// engineDType is what the engine is asked to give where dtype is stored: the
// same, unless that is made of it.
func (j *job) engineDType(dtype string) string {
	if dtype == "fp8" {
		return j.cfg.Extract.EngineDType
	}
	return dtype
}

func (j *job) newVLLM() (backend.Backend, error) {
	x := j.cfg.Extract
	key, err := apiKey(x)
	if err != nil {
		return nil, err
	}
	o := vllm.Options{
		Endpoints: x.Endpoints, Hidden: j.model.Hidden, Layers: j.model.Layers, Vocab: j.model.Vocab, Capture: j.layers, DType: j.engineDType(j.cfg.Plan.DType),
		SharedDir: x.SharedDir, APIKey: key, InFlight: int64(x.InFlight), Concurrency: x.Concurrency,
	}
	if j.ws != nil {
		// The same in every run of the workspace: what a killed one left behind
		// is removed by the next.
		o.Tag = strings.ReplaceAll(j.ws.RootID(), "-", "")
	}
	b, err := vllm.New(o)
	return b, configError(err)
}

func configError(err error) error {
	if err != nil {
		return fmt.Errorf("%w: extract: %w", config.ErrConfig, err)
	}
	return nil
}

// apiKey reads the endpoints' key from where the configuration says.
func apiKey(x config.Extract) (string, error) {
	switch {
	case x.APIKeyEnv != "" && x.APIKeyFile != "":
		return "", fmt.Errorf("%w: extract.api_key_env and extract.api_key_file: give one of them", config.ErrConfig)
	case x.APIKeyEnv != "":
		if key := os.Getenv(x.APIKeyEnv); key != "" {
			return key, nil
		}
		return "", fmt.Errorf("%w: extract.api_key_env: the environment has no %s", config.ErrConfig, x.APIKeyEnv)
	case x.APIKeyFile != "":
		b, err := os.ReadFile(x.APIKeyFile)
		if err != nil {
			return "", fmt.Errorf("%w: extract.api_key_file: %w", config.ErrConfig, err)
		}
		if key := strings.TrimSpace(string(b)); key != "" && !strings.ContainsAny(key, "\r\n") {
			return key, nil
		}
		return "", fmt.Errorf("%w: extract.api_key_file: %w", config.ErrConfig, errors.New(x.APIKeyFile+" does not hold one line with a key"))
	}
	return "", nil
}
