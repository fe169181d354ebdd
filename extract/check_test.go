package extract

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// patterns are bit patterns of a dtype at the edges of what is finite.
func patterns(dtype string) (finite, not []uint32) {
	switch dtype {
	case "bf16":
		return []uint32{0x0001, 0x8001, 0x3f80, 0x7f7f, 0xff7f, 0x0080}, []uint32{0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81}
	case "fp16":
		return []uint32{0x0001, 0x8001, 0x3c00, 0x7bff, 0xfbff, 0x0400}, []uint32{0x7c00, 0xfc00, 0x7e00, 0xffff, 0x7c01}
	}
	return []uint32{1, 0x80000001, 0x3f800000, 0x7f7fffff, 0xff7fffff}, []uint32{0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f800001}
}

func TestCheckRow(t *testing.T) {
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		v, err := valuesOf(dtype)
		if err != nil {
			t.Fatal(err)
		}
		size := 2
		if dtype == "fp32" {
			size = 4
		}
		put := func(row []byte, i int, bits uint32) {
			if size == 2 {
				binary.LittleEndian.PutUint16(row[2*i:], uint16(bits))
			} else {
				binary.LittleEndian.PutUint32(row[4*i:], bits)
			}
		}
		finite, not := patterns(dtype)
		for n := 1; n < 70; n++ {
			row := make([]byte, n*size)
			if bad, zero := v.check(row); bad || !zero {
				t.Fatalf("%s %d zeros: bad %t zero %t", dtype, n, bad, zero)
			}
			for i := range n {
				put(row, i, 1<<(8*size-1)) // minus zero
			}
			if bad, zero := v.check(row); bad || !zero {
				t.Fatalf("%s %d minus zeros: bad %t zero %t", dtype, n, bad, zero)
			}
			for i := range n {
				for _, x := range finite {
					put(row, i, x)
					if bad, zero := v.check(row); bad || zero {
						t.Fatalf("%s %#x at %d of %d: bad %t zero %t", dtype, x, i, n, bad, zero)
					}
				}
				for _, x := range not {
					put(row, i, x)
					if bad, _ := v.check(row); !bad {
						t.Fatalf("%s %#x at %d of %d passes", dtype, x, i, n)
					}
				}
				put(row, i, 0)
			}
		}
	}
	if _, err := valuesOf("fp8"); err == nil {
		t.Error("fp8 is not refused")
	}
}

func TestCheckRowsNames(t *testing.T) {
	v, err := valuesOf("bf16")
	if err != nil {
		t.Fatal(err)
	}
	layers := []int{2, 30, 61}
	data := make([]byte, 5*len(layers)*8)
	for i := range data {
		data[i] = 1
	}
	if err := v.checkRows(data, 10, 8, layers); err != nil {
		t.Fatal(err)
	}
	clear(data[(2*3+1)*8:][:8])
	if err := v.checkRows(data, 10, 8, layers); err == nil || !strings.Contains(err.Error(), "token 12 layer 30: all zero") {
		t.Errorf("%v", err)
	}
	binary.LittleEndian.PutUint16(data[4:], 0x7fc0)
	if err := v.checkRows(data, 10, 8, layers); err == nil || !strings.Contains(err.Error(), "token 10 layer 2: not finite") {
		t.Errorf("%v", err)
	}
}

func TestCredit(t *testing.T) {
	c := newCredit(8<<20, 4096)
	if c.slabBytes%4096 != 0 || c.total*c.slabBytes > 8<<20 {
		t.Errorf("%d slabs of %d bytes from 8 MiB", c.total, c.slabBytes)
	}
	if n, stream := c.need(c.slabRows + 1); n != 2 || stream {
		t.Errorf("a slab and a row: %d %t", n, stream)
	}
	if n, stream := c.need(c.total * c.slabRows); n != c.total || stream {
		t.Errorf("all of it: %d %t", n, stream)
	}
	if n, stream := c.need(c.total*c.slabRows + 1); n != c.total || !stream {
		t.Errorf("more than all: %d %t", n, stream)
	}
	rq := &request{credit: 2}
	c.free -= 2
	rq.slabs = [][]byte{c.slab(), c.slab()}
	c.back(rq, false)
	if c.free != c.total-2 || len(c.slabs) != 2 {
		t.Errorf("slabs without the credit: %d free of %d", c.free, c.total)
	}
	c.back(rq, true)
	c.back(rq, true)
	if c.free != c.total {
		t.Errorf("%d free of %d", c.free, c.total)
	}
	if c := newCredit(1000, 1<<20); c.total < 2 || c.slabRows != 1 {
		t.Errorf("a budget below a row: %+v", c)
	}
}

func TestSketchKeepsCosines(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const hidden = 2048
	row := func(noise float64, base []float64) []byte {
		var b []byte
		for _, x := range base {
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(x+noise*r.NormFloat64()))>>16))
		}
		return b
	}
	base := make([]float64, hidden)
	for i := range base {
		base[i] = r.NormFloat64()
	}
	a := sketchRows(row(0, base), "bf16", hidden)
	if c := cosine(a, sketchRows(row(0.01, base), "bf16", hidden)); c < minCosine {
		t.Errorf("rounding noise: cosine %f", c)
	}
	if c := cosine(a, sketchRows(row(0.5, base), "bf16", hidden)); c >= minCosine {
		t.Errorf("another model: cosine %f", c)
	}
	if n := len(sketchRows(make([]byte, 3*hidden*4), "fp32", hidden)); n != 3*sketchDims {
		t.Errorf("%d numbers for 3 rows", n)
	}
}

func TestValue(t *testing.T) {
	for _, c := range []struct {
		dtype string
		bits  uint16
		want  float64
	}{
		{"bf16", 0x3f80, 1}, {"bf16", 0xc000, -2}, {"fp16", 0x3c00, 1}, {"fp16", 0xc000, -2}, {"fp16", 0x0001, math.Ldexp(1, -24)}, {"fp16", 0x3555, 0.333251953125},
	} {
		b := binary.LittleEndian.AppendUint16(nil, c.bits)
		if got := value(b, c.dtype); got != c.want {
			t.Errorf("%s %#x: %v, want %v", c.dtype, c.bits, got, c.want)
		}
	}
}

// BenchmarkCheck prints how much longer a copy of the same bytes takes.
func BenchmarkCheck(b *testing.B) {
	v, err := valuesOf("bf16")
	if err != nil {
		b.Fatal(err)
	}
	row := make([]byte, 7168*2*4*32)
	for i := range row {
		row[i] = 1
	}
	b.SetBytes(int64(len(row)))
	for b.Loop() {
		if err := v.checkRows(row, 0, 7168*2, []int{2, 30, 58, 61}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	checked, dst := b.Elapsed(), make([]byte, len(row))
	began := time.Now()
	for range b.N {
		copy(dst, row)
	}
	b.ReportMetric(float64(checked)/float64(time.Since(began)), "times-memcpy")
}
