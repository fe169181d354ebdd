package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model"
	"eaglebatch/store"
	"eaglebatch/store/samples"
)

const (
	senseSamples = 4
	senseTokens  = 512 // of a sample
	senseEnough  = 32  // rows that a verdict needs
)

// examineSense puts a few merged samples through the engine and asks of the last
// layer's states whether they speak for the next token: after the final norm, as
// states before it do, and without it, as states after it would.
func (j *job) examineSense(ctx context.Context, b backend.Backend, info backend.Info) finding {
	f := finding{What: "sense of the states", Verdict: "ok"}
	last := info.Capture[len(info.Capture)-1]
	if info.Synthetic || last != info.Layers {
		f.Detail = fmt.Sprintf("not looked at: layer %d is not among those asked for, or the values are made up", info.Layers)
		return f
	}
	h, err := model.OpenHead(j.cfg.Model)
	if isNoWeights(err) {
		f.Verdict, f.Detail = "warn", fmt.Sprintf("not looked at: %s holds no weights of lm_head", j.cfg.Model)
		return f
	}
	if err != nil {
		return verdict(f.What, "", err)
	}
	defer h.Close()
	list, err := j.realSamples(ctx)
	if err != nil {
		return verdict(f.What, "", err)
	}
	if len(list) == 0 {
		f.Detail = "not looked at: that takes real text, and nothing is merged yet: " + j.command(j.c, "merge") + ", and then this again"
		return f
	}
	rows, next, err := lastStates(ctx, b, info, h, list)
	if err != nil {
		return verdict(f.What, "", err)
	}
	scores, err := h.Score(ctx, rows, info.DType, next)
	if err != nil {
		return verdict(f.What, "", err)
	}
	f.Verdict, f.Detail = judgeSense(scores, info.LastPreNorm, j.cfg.Extract.MinTop1)
	return f
}

// judgeSense says what the scores mean.
func judgeSense(scores []model.Score, prenorm bool, least float64) (verdict, detail string) {
	n := float64(len(scores))
	if len(scores) < senseEnough {
		return "warn", fmt.Sprintf("%d supervised rows in the first samples are too few to tell", len(scores))
	}
	var top, raw, log, rawLog float64
	for _, s := range scores {
		if s.Top1 {
			top += 1 / n
		}
		if s.RawTop1 {
			raw += 1 / n
		}
		log, rawLog = log+s.LogProb/n, rawLog+s.RawLogProb/n
	}
	detail = fmt.Sprintf("of %d supervised rows lm_head ranks the next token first in %.0f%% after the final norm (mean log-probability %.2f), in %.0f%% without it (%.2f)",
		len(scores), 100*top, log, 100*raw, rawLog)
	// States after the norm score nearly as high when normed once more; the
	// log-probability tells.
	after := raw >= least && raw >= top && rawLog > log
	switch {
	case prenorm && after:
		return "fail", detail + ": the engine gives the last layer after the norm, and it is wanted before"
	case !prenorm && !after && top >= least:
		return "fail", detail + ": the engine gives the last layer before the norm, and it was said to give it after"
	case max(top, raw) < least:
		return "fail", detail + ": the states are shifted, of another layer or of another model"
	}
	return "ok", detail
}

// realSamples returns the first merged samples that have something supervised.
func (j *job) realSamples(ctx context.Context) (list []samples.Sample, err error) {
	snap, err := store.Inspect(j.cfg.Work)
	if errors.Is(err, store.ErrNoWorkspace) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sets, err := snap.Datasets()
	if err != nil {
		return nil, err
	}
	for _, d := range sets {
		g, ok, err := snap.Generation(d.SamplesGen)
		if err != nil {
			return nil, err
		}
		if !ok || !d.Done || d.Accepted == 0 {
			continue
		}
		st, err := samples.Open(filepath.Join(j.cfg.Work, g.Path), d.FirstRow+d.Accepted, samples.Options{Memory: 16 << 20})
		if err != nil {
			return nil, err
		}
		for i := uint64(0); i < uint64(min(d.Accepted, senseSamples)) && err == nil; i++ {
			var s *samples.Sample
			if s, err = st.Get(ctx, d.ID, i); err == nil {
				n := min(len(s.IDs), senseTokens)
				list = append(list, samples.Sample{IDs: s.IDs[:n], Mask: s.Mask[:n]})
			}
		}
		if err := errors.Join(err, st.Close()); err != nil || len(list) >= senseSamples {
			return list, err
		}
	}
	return list, nil
}

// lastStates asks the engine for samples and keeps, of each supervised token,
// the last layer's state of the one before it.
func lastStates(ctx context.Context, b backend.Backend, info backend.Info, h *model.Head, list []samples.Sample) (rows []byte, next []uint32, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := make(chan backend.Request, len(list))
	for i, s := range list {
		n := len(s.IDs)
		if info.MaxTokens > 0 {
			n = min(n, info.MaxTokens)
		}
		in <- backend.Request{ID: uint64(i), Tokens: s.IDs[:n], Name: "doctor's"}
	}
	close(in)
	size := info.Hidden * 2
	if info.DType == "fp32" {
		size *= 2
	}
	token := size * len(info.Capture)
	err = b.Serve(ctx, 0, in, func(c backend.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		s := list[c.ID]
		for r := range c.Rows {
			t := c.First + r + 1
			if t < len(s.IDs) && s.Mask[t] == 1 && int(s.IDs[t]) < h.Vocab() {
				rows = append(rows, c.Data[(r+1)*token-size:(r+1)*token]...)
				next = append(next, s.IDs[t])
			}
		}
		return nil
	})
	return rows, next, err
}
