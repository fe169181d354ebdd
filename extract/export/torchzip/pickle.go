package torchzip

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Opcodes of the pickle machine, protocol 2.
const (
	opProto      = 0x80
	opStop       = '.'
	opMark       = '('
	opEmptyDict  = '}'
	opSetItems   = 'u'
	opUnicode    = 'X'
	opGlobal     = 'c'
	opTuple      = 't'
	opEmptyTuple = ')'
	opReduce     = 'R'
	opPersID     = 'Q'
	opTrue       = 0x88
	opFalse      = 0x89
	opInt        = 'J'
	opLong1      = 0x8a
)

type pickler struct{ b []byte }

// pickle returns the dictionary, its k-th tensor an id of storage k.
func pickle(items []Item) ([]byte, error) {
	p := &pickler{b: []byte{opProto, 2, opEmptyDict, opMark}}
	k := 0
	for _, it := range items {
		p.text(it.Key)
		switch v := it.Value.(type) {
		case string:
			p.text(v)
		case bool:
			p.flag(v)
		case Tensor:
			if err := p.tensor(k, v); err != nil {
				return nil, err
			}
			k++
		default:
			return nil, fmt.Errorf("torch files: %q is a %T", it.Key, v)
		}
	}
	return append(p.b, opSetItems, opStop), nil
}

func (p *pickler) op(codes ...byte) { p.b = append(p.b, codes...) }

func (p *pickler) text(s string) {
	p.op(opUnicode)
	p.b = binary.LittleEndian.AppendUint32(p.b, uint32(len(s)))
	p.b = append(p.b, s...)
}

func (p *pickler) flag(v bool) {
	if v {
		p.op(opTrue)
	} else {
		p.op(opFalse)
	}
}

func (p *pickler) number(n int64) {
	if n >= 0 && n <= math.MaxInt32 {
		p.op(opInt)
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(n))
		return
	}
	p.op(opLong1, 8)
	p.b = binary.LittleEndian.AppendUint64(p.b, uint64(n))
}

func (p *pickler) global(module, name string) {
	p.op(opGlobal)
	p.b = append(p.b, module+"\n"+name+"\n"...)
}

func (p *pickler) tuple(ns []int64) {
	p.op(opMark)
	for _, n := range ns {
		p.number(n)
	}
	p.op(opTuple)
}

// tensor calls _rebuild_tensor_v2(storage, offset, size, stride, requires_grad,
// backward hooks).
func (p *pickler) tensor(k int, t Tensor) error {
	class, _, err := t.DType.storage()
	if err != nil {
		return err
	}
	stride := make([]int64, len(t.Shape))
	n := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		stride[i] = n
		n *= max(t.Shape[i], 1)
	}
	p.global("torch._utils", "_rebuild_tensor_v2")
	p.op(opMark)
	p.op(opMark)
	p.text("storage")
	p.global("torch", class)
	p.text(fmt.Sprint(k))
	p.text("cpu")
	p.number(t.values())
	p.op(opTuple, opPersID)
	p.number(0)
	p.tuple(t.Shape)
	p.tuple(stride)
	p.flag(false)
	p.global("collections", "OrderedDict")
	p.op(opEmptyTuple, opReduce)
	p.op(opTuple, opReduce)
	return nil
}
