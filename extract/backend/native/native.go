package native

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"

	"eaglebatch/extract/backend"
	"eaglebatch/extract/model"
	"eaglebatch/extract/model/kernel"
	"eaglebatch/internal/human"
)

// Options configures the engine. The zero value is usable, Capture apart.
type Options struct {
	Capture     []int  // layer ids, ascending: id k is the residual stream after k layers
	DType       string // of the rows: bf16 (default), fp16, fp32
	Compute     string // fp32 (default), or bf16: operands of products rounded to bf16, sums in fp32
	Threads     int    // 0: GOMAXPROCS
	BatchTokens int    // samples are packed up to so many tokens; 0: 4096
	Memory      int64  // bytes of anonymous memory, mapped weights apart; 0: 4 GiB
	Kernels     string // a kernel set by name: generic, avx2, avx512, neon; "": the fastest
	BF16        string // a family of bf16 products by name: amx, avx512bf16, fma; "": the fastest
}

const (
	defaultBatch  = 4096
	defaultMemory = 4 << 30
)

// Backend is the engine on one model.
type Backend struct {
	o    Options
	dec  *model.Decoder
	set  *kernel.Set
	bf16 *kernel.BF16 // nil: fp32
	dims dims
	max  int // tokens of the longest sample that memory allows
}

var _ backend.Backend = (*Backend)(nil)

// New maps the model at modelPath. It fails where the model is not supported
// or Options.Memory does not suffice for a batch of one token.
func New(modelPath string, o Options) (*Backend, error) {
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.BatchTokens <= 0 {
		o.BatchTokens = defaultBatch
	}
	if o.Memory <= 0 {
		o.Memory = defaultMemory
	}
	if o.DType == "" {
		o.DType = "bf16"
	}
	if o.Compute == "" {
		o.Compute = "fp32"
	}
	b := &Backend{o: o}
	if err := b.chooseKernels(); err != nil {
		return nil, err
	}
	dec, err := model.OpenDecoder(modelPath)
	if errors.Is(err, model.ErrUnsupported) {
		return nil, fmt.Errorf("native: %w: another extract.backend may take this model (worker runs transformers; vllm and sglang ask a server)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("native: %w", err)
	}
	b.dec, b.dims = dec, newDims(dec.Spec, arith{b.set, b.bf16})
	if err := b.validate(); err != nil {
		_ = dec.Close() // nothing was written; the first error counts
		return nil, fmt.Errorf("native: %w", err)
	}
	return b, nil
}

func (b *Backend) chooseKernels() error {
	var err error
	if b.set, err = kernel.ByName(b.o.Kernels); err != nil {
		return fmt.Errorf("native: %w", err)
	}
	switch b.o.Compute {
	case "fp32":
		return nil
	case "bf16":
		for _, f := range kernel.BF16s() {
			if b.o.BF16 == "" || f.Name() == b.o.BF16 {
				b.bf16 = f
				return nil
			}
		}
		return fmt.Errorf("native: this CPU has no bf16 products %q", b.o.BF16)
	}
	return fmt.Errorf("native: compute type %q (fp32 and bf16 exist)", b.o.Compute)
}

func (b *Backend) validate() error {
	c := b.o.Capture
	if len(c) == 0 || !slices.IsSorted(c) || c[0] < 0 || c[len(c)-1] > b.dec.Layers {
		return fmt.Errorf("capture %v: want ascending layer ids from 0 to %d", c, b.dec.Layers)
	}
	for i := 1; i < len(c); i++ {
		if c[i] == c[i-1] {
			return fmt.Errorf("capture %v: layer %d comes twice", c, c[i])
		}
	}
	if dtypeSize(b.o.DType) == 0 {
		return fmt.Errorf("dtype %q (bf16, fp16 and fp32 exist)", b.o.DType)
	}
	n := b.Need()
	b.max = int(min((b.o.Memory-n.Fixed)/n.Token, math.MaxInt32)) / kernel.Panel * kernel.Panel
	if b.max < 1 {
		return fmt.Errorf("this model needs %s and %s for each token, and half of extract.memory is %s: raise extract.memory, or lower extract.threads (%d)",
			human.Bytes(n.Fixed), human.Bytes(n.Token), human.Bytes(b.o.Memory), b.o.Threads)
	}
	return nil
}

func dtypeSize(dtype string) int {
	switch dtype {
	case "bf16", "fp16":
		return 2
	case "fp32":
		return 4
	}
	return 0
}

// Need is the anonymous memory that a batch takes: Fixed + n·Token bytes for n
// tokens, each sample's rounded up to a multiple of 32. The mapped weights come
// on top, as page cache. None of it is taken before the first batch.
type Need struct {
	Fixed, Token int64
	Weights      int64 // mapped
	MaxTokens    int   // of the longest sample that Options.Memory allows
}

// Memory is the extract.memory, of which the engine has half, that a sample of
// so many tokens takes, in whole MiB.
func (n Need) Memory(tokens int) int64 {
	const unit = 1 << 20
	return (2*(n.Fixed+n.Token*int64(kernel.Up(tokens, kernel.Panel))) + unit - 1) / unit * unit
}

// Need returns the memory that batches take with these options.
func (b *Backend) Need() Need {
	d := b.dims
	word, operand := 4, 0 // bytes of a packed value, of a left-hand side's copy
	if b.bf16 != nil {
		operand = 4
	}
	if b.bf16.Half() {
		word, operand = 2, 2
	}
	worker := 4*rowBlock*(2*d.hiddenS+d.wideS) + operand*rowBlock*(d.inS+stride(d.ffnB)) + 4*kernel.Panel*d.maxK +
		4*queryBlock*(d.headS+scoreS+d.headP+3) + operand*queryBlock*scoreS
	row := 4 * (d.hiddenS + d.qS + 2*d.kvW) // of the batch, in whole blocks
	token := row + 2*word*d.kvHeads*d.headP + 4*2*d.headDim + 2*b.rowBytes()
	return Need{Fixed: int64(word*d.layerLen() + b.o.Threads*worker + rowBlock*row), Token: int64(token), Weights: b.dec.Bytes(), MaxTokens: b.max}
}

// Describe implements backend.Backend.
func (b *Backend) Describe(ctx context.Context) (backend.Info, error) {
	return backend.Info{
		Engine:        "native",
		Version:       b.version(),
		Model:         b.dec.Path,
		Hidden:        b.dec.Hidden,
		Layers:        b.dec.Layers,
		Vocab:         b.dec.Vocab,
		Capture:       slices.Clone(b.o.Capture),
		DType:         b.o.DType,
		LastPreNorm:   true,
		MaxTokens:     b.max,
		Slots:         1,
		Deterministic: true,
		RowRanges:     true,
	}, ctx.Err()
}

// version names what the bytes of a row depend on besides the model.
func (b *Backend) version() string {
	v := "3 fp32"
	if b.bf16 != nil {
		v = "3 bf16-" + b.bf16.Name()
	}
	return v + " " + runtime.GOARCH
}

// Close unmaps the model.
func (b *Backend) Close() error { return b.dec.Close() }
