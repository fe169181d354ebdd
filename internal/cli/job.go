package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/extract/model"
	"eaglebatch/gc"
	"eaglebatch/ingest"
	"eaglebatch/internal/config"
	"eaglebatch/permute"
	"eaglebatch/plan"
	"eaglebatch/store"
	"eaglebatch/store/blob"
)

// job is a session with the model at hand and the options of every phase
// derived from the configuration.
type job struct {
	*session
	model  model.Config
	modelF string // fingerprint
	layers []int
	accept store.Acceptance // recorded decision in force; zero: none
}

// newJob reads the model and lays the recorded decision over the plan section.
func newJob(s *session) (*job, error) {
	j := &job{session: s}
	if err := j.applyAcceptance(); err != nil {
		return nil, err
	}
	return j, j.readModel()
}

func (j *job) readModel() (err error) {
	path := j.cfg.Model
	if path == "" {
		return nil
	}
	if j.model, err = model.ReadConfig(path); err != nil {
		return fmt.Errorf("%w: model %q: %w", config.ErrConfig, path, err)
	}
	if j.modelF, err = model.Fingerprint(j.c.Context, path); err != nil {
		return fmt.Errorf("model %q: %w", path, err)
	}
	j.layers, err = j.cfg.Plan.Layers.For(j.model.Layers)
	return err
}

// applyAcceptance overrides the plan section by the recorded decision, unless
// the section was edited since: then the decision has lapsed.
func (j *job) applyAcceptance() error {
	var a store.Acceptance
	var ok bool
	err := j.ws.View(func(r store.Reader) (err error) {
		a, ok, err = r.Acceptance()
		return err
	})
	if err != nil || !ok {
		return err
	}
	if a.PlanYAML != hashText(j.cfg.PlanText) {
		j.rep.Note("the decision of %s has lapsed: the plan section of %s changed since", a.At.Format("2006-01-02 15:04"), j.cfg.File)
		return nil
	}
	var over []config.Override
	for k, v := range a.Values {
		if k == "gc" {
			continue
		}
		if k == "drop" {
			v = "[" + strings.ReplaceAll(v, "+", ",") + "]"
		}
		over = append(over, config.Override{Key: "plan." + k, Value: v, From: "recorded decision"})
	}
	slices.SortFunc(over, func(a, b config.Override) int { return strings.Compare(a.Key, b.Key) })
	cfg, err := j.load(j.c, over...)
	if err != nil {
		return fmt.Errorf("the recorded decision no longer fits the configuration: %w", err)
	}
	j.cfg, j.accept = cfg, a
	return nil
}

// gcNames are the generations that the recorded decision deletes.
func (j *job) gcNames() []string {
	if v := j.accept.Values["gc"]; v != "" {
		return strings.Split(v, "+")
	}
	return nil
}

func (j *job) needModel(what string) error {
	if j.cfg.Model == "" {
		return withHint(fmt.Errorf("%w: %s: no model is configured", config.ErrConfig, what), "set 'model:' to a directory with config.json, or to a .gguf file")
	}
	return nil
}

func (j *job) ingestOptions() (ingest.Options, error) {
	vocab := j.cfg.Merge.VocabSize
	if vocab == 0 {
		vocab = j.model.Vocab
	}
	if vocab == 0 {
		return ingest.Options{}, withHint(fmt.Errorf("%w: the vocabulary size is not known", config.ErrConfig), "set 'model:', or merge.vocab_size")
	}
	if most := j.model.Vocab; most > 0 && vocab > most {
		return ingest.Options{}, withHint(fmt.Errorf("%w: merge.vocab_size is %d, the model knows ids 0 to %d: it could not run on others", config.ErrConfig, vocab, most-1),
			"leave merge.vocab_size out: it is for datasets without a model")
	}
	if len(j.cfg.Datasets) == 0 {
		return ingest.Options{}, fmt.Errorf("%w: %s: no datasets", config.ErrConfig, j.cfg.File)
	}
	o := ingest.Options{
		VocabSize: vocab, Dedup: j.cfg.Merge.Dedup, MaxRejects: j.cfg.Merge.MaxRejects,
		MinLossTokens: j.cfg.Merge.MinLossTokens, Reserve: j.cfg.Plan.Reserve, Threads: j.cfg.Extract.Threads,
		Memory: min(int64(j.cfg.Extract.Memory), 512<<20),
	}
	for _, d := range j.cfg.Datasets {
		o.Datasets = append(o.Datasets, ingest.Dataset{Name: d.Name, Paths: d.Path})
	}
	return o, nil
}

func (j *job) permuteOptions() permute.Options {
	o := permute.Options{
		Seed: j.cfg.Shuffle.Seed, Algorithm: j.cfg.Shuffle.Algorithm,
		Weights: map[string]float64{}, Eval: map[string]int64{},
	}
	for _, d := range j.cfg.Datasets {
		if d.Weight != 1 {
			o.Weights[d.Name] = d.Weight
		}
		if d.Eval > 0 {
			o.Eval[d.Name] = d.Eval
		}
	}
	return o
}

// engine names what computes the states, as far as two generations must agree
// on it to be mixed.
func (j *job) engine() string {
	if j.cfg.Extract.Backend == "native" {
		return "native-" + j.cfg.Extract.Compute
	}
	return j.cfg.Extract.Backend
}

func (j *job) planOptions() (plan.Options, error) {
	if err := j.needModel("plan"); err != nil {
		return plan.Options{}, err
	}
	p := j.cfg.Plan
	meta := blob.Meta{
		Layers: j.layers, Hidden: j.model.Hidden, DType: p.DType, Codec: j.cfg.Extract.Codec,
		LastPreNorm: j.cfg.Extract.Backend != "sglang", Model: j.modelF, Tokenizer: j.model.Tokenizer,
		Engine: j.engine(), Synthetic: j.cfg.Extract.Backend == "synthetic",
	}
	if p.DType == "fp8" {
		meta.Source = j.engineDType(p.DType)
	}
	head, err := j.headSize()
	if err != nil {
		return plan.Options{}, err
	}
	return plan.Options{
		Model: j.modelF, Meta: meta, Identity: j.identity(),
		MaxTokens: p.MaxTokens, Overlong: p.Overlong, Drop: p.Drop, Rows: p.Rows, MaxDatasetTokens: p.MaxDatasetTokens,
		LengthFrom: int64(j.model.LengthFrom), Reserve: p.Reserve, BlobSize: int64(p.BlobSize), Memory: int64(j.cfg.Extract.Memory), Rate: p.TokensPerSecond, GCNames: j.gcNames(),
		Beside: head,
	}, nil
}

// headSize is what target_head.safetensors will take.
func (j *job) headSize() (n int64, err error) {
	if j.cfg.Extract.Backend == "synthetic" {
		return 0, nil
	}
	h, err := model.OpenHead(j.cfg.Model)
	if isNoWeights(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("model %q: %w", j.cfg.Model, err)
	}
	return h.Size(), h.Close()
}

func (j *job) identity() []store.Part {
	return j.identityOf(j.layers, j.cfg.Plan.DType, j.cfg.Plan.Rows)
}

// identityOf is the identity of states in another shape than the plan's.
func (j *job) identityOf(layers []int, dtype, rows string) []store.Part {
	ids := make([]string, len(layers))
	for i, l := range layers {
		ids[i] = strconv.Itoa(l)
	}
	if given := j.engineDType(dtype); given != dtype {
		dtype += " from " + given
	}
	return []store.Part{
		{Key: "model", Value: j.modelF},
		{Key: "layers", Value: strings.Join(ids, ",")},
		{Key: "dtype", Value: dtype},
		{Key: "rows", Value: rows},
		{Key: "engine", Value: j.engine()},
	}
}

func (j *job) gcOptions() gc.Options {
	return gc.Options{Keep: j.cfg.GC.Keep, MinAge: j.cfg.GC.MinAge, Protected: j.protected()}
}

// planRow returns the plan in force.
func (s *session) planRow() (store.PlanRow, error) {
	var p store.PlanRow
	var ok bool
	err := s.ws.View(func(r store.Reader) (err error) {
		p, ok, err = r.Plan()
		return err
	})
	if err == nil && !ok {
		err = notYet("plan", s.command(s.c, "plan"))
	}
	return p, err
}

// require fails unless a phase is done.
func (s *session) require(ctx context.Context, phases ...string) error {
	return s.ws.View(func(r store.Reader) error {
		for _, name := range phases {
			row, ok, err := r.Phase(name)
			if err != nil {
				return err
			}
			if !ok || row.State != store.Done {
				return notYet(name, s.command(s.c, name))
			}
		}
		return nil
	})
}

func isNoWeights(err error) bool { return errors.Is(err, model.ErrNoWeights) }
