package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// widen reads a bf16 (size 2) or fp32 value.
func widen(b []byte, size int) float32 {
	if size == 2 {
		return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

func fp32Rows(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = appendValue(b, "fp32", v)
	}
	return b
}

func quantize(dst, src []byte, dtype string, hidden int) ([]byte, error) {
	q, err := NewQuantizer(dtype, hidden)
	if err != nil {
		return dst, err
	}
	dst, _, err = q.Rows(dst, src)
	return dst, err
}

// TestE4M3 compares every value and every midpoint with the definition.
func TestE4M3(t *testing.T) {
	if got := fromE4M3(0x7e); got != fp8Max {
		t.Fatalf("largest value is %v", got)
	}
	if got := fromE4M3(0x01); got != 0x1p-9 {
		t.Fatalf("smallest value is %v", got)
	}
	if v := fromE4M3(0x7f); v == v {
		t.Fatal("0x7f is not NaN")
	}
	for c := range 0x7f {
		v := fromE4M3(byte(c))
		for sign, f := range map[byte]float32{0: v, 0x80: float32(math.Copysign(float64(v), -1))} {
			if got := toE4M3(f); got != byte(c)|sign {
				t.Errorf("%v: got %#x, want %#x", f, got, byte(c)|sign)
			}
		}
		if c == 0x7e {
			continue
		}
		mid := (v + fromE4M3(byte(c+1))) / 2
		even := byte(c + c&1)
		if got := toE4M3(mid); got != even {
			t.Errorf("midpoint %v: got %#x, want %#x", mid, got, even)
		}
		if got := toE4M3(math.Nextafter32(mid, 1e9)); got != byte(c+1) {
			t.Errorf("above midpoint %v: got %#x", mid, got)
		}
		if got := toE4M3(math.Nextafter32(mid, 0)); got != byte(c) {
			t.Errorf("below midpoint %v: got %#x", mid, got)
		}
	}
	if got := toE4M3(1e9); got != 0x7e {
		t.Errorf("1e9 became %#x", got)
	}
}

// TestQuantizeBound holds quantized rows to the error that is documented.
func TestQuantizeBound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const hidden = 300
	for _, dtype := range []string{"fp32", "bf16"} {
		size := width(t, dtype)
		var raw []byte
		for row := range 60 {
			scale := math.Exp2(float64(row*4 - 126)) // from denormals up
			for range hidden {
				raw = appendValue(raw, dtype, float32(scale*r.NormFloat64()*math.Exp(3*r.NormFloat64())))
			}
		}
		q, err := quantize([]byte("x"), raw, dtype, hidden)
		if err != nil {
			t.Fatal(err)
		}
		q = q[1:]
		if len(q) != 60*FP8RowBytes(hidden) {
			t.Fatalf("%d bytes", len(q))
		}
		back, err := DequantizeRows([]byte("x"), q, dtype, hidden)
		if err != nil {
			t.Fatal(err)
		}
		back = back[1:]
		if len(back) != len(raw) {
			t.Fatalf("%d bytes came back as %d", len(raw), len(back))
		}
		for row := range 60 {
			most := 0.0
			for i := range hidden {
				most = max(most, math.Abs(float64(widen(raw[size*(row*hidden+i):], size))))
			}
			s := max(most/448, 0x1p-126)
			for i := range hidden {
				at := size * (row*hidden + i)
				x, y := float64(widen(raw[at:], size)), float64(widen(back[at:], size))
				bound := max(math.Abs(x), s/64) / 16 * (1 + 0x1p-20)
				if dtype == "bf16" {
					bound += math.Abs(y)*0x1p-8 + 0x1p-133
				} else {
					bound += 0x1p-149 // y may be a denormal
				}
				if math.Abs(x-y) > bound {
					t.Fatalf("%s row %d value %d: %v came back as %v, off by more than %v", dtype, row, i, x, y, bound)
				}
			}
		}
	}
}

func TestQuantizeSpecials(t *testing.T) {
	q, err := quantize(nil, fp32Rows(0, float32(math.Copysign(0, -1)), 0, 0), "fp32", 4)
	if err != nil {
		t.Fatal(err)
	}
	back, err := DequantizeRows(nil, q, "fp32", 4)
	if err != nil {
		t.Fatal(err)
	}
	if want := fp32Rows(0, float32(math.Copysign(0, -1)), 0, 0); !bytes.Equal(back, want) {
		t.Errorf("zeros came back as %x", back)
	}
	most := float32(math.MaxFloat32)
	if q, err = quantize(nil, fp32Rows(most, -1), "fp32", 2); err != nil {
		t.Fatal(err)
	}
	for _, dtype := range []string{"fp32", "bf16"} {
		back, err := DequantizeRows(nil, q, dtype, 2)
		if err != nil {
			t.Fatal(err)
		}
		if v := widen(back, width(t, dtype)); v < 0.99*most || v > most {
			t.Errorf("the largest number came back as %v in %s", v, dtype)
		}
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, bad := range []float32{nan, inf} {
		if _, err := quantize(nil, fp32Rows(1, bad), "fp32", 2); err == nil {
			t.Errorf("%v was quantized", bad)
		}
	}
	tests := []struct {
		name   string
		src    []byte
		dtype  string
		hidden int
	}{
		{"odd size", make([]byte, 7), "fp32", 2},
		{"dtype", make([]byte, 8), "fp8", 2},
		{"no values", make([]byte, 8), "fp32", 0},
	}
	for _, tt := range tests {
		if _, err := quantize(nil, tt.src, tt.dtype, tt.hidden); err == nil {
			t.Errorf("%s: quantized", tt.name)
		}
		if _, err := DequantizeRows(nil, tt.src, tt.dtype, tt.hidden); err == nil {
			t.Errorf("%s: dequantized", tt.name)
		}
	}
	for _, scale := range []float32{0, -1, nan, inf, 0x1p-127} {
		row := binary.LittleEndian.AppendUint32(nil, math.Float32bits(scale))
		if _, err := DequantizeRows(nil, append(row, 1), "bf16", 1); !errors.Is(err, ErrMalformed) {
			t.Errorf("scale %v: %v", scale, err)
		}
	}
	if _, err := DequantizeRows(nil, []byte{0, 0, 0x80, 0x3f, 0xff}, "bf16", 1); !errors.Is(err, ErrMalformed) {
		t.Errorf("NaN: %v", err)
	}
}

// TestRowLoss holds the reported errors to those of the rows as they come back.
func TestRowLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const hidden, rows = 100, 40
	for _, dtype := range []string{"bf16", "fp16", "fp32"} {
		var raw []byte
		var given []float64
		for row := range rows {
			for range hidden {
				v := float32(r.NormFloat64() * math.Exp(2*r.NormFloat64()))
				if row == 7 {
					v = 0 // no error, and no division by its length
				}
				if dtype == "fp16" {
					h := uint16(r.Uint32N(0x7c00)) | uint16(r.Uint32N(2))<<15 // any finite number, the smallest too
					raw = binary.LittleEndian.AppendUint16(raw, h)
					given = append(given, halfByDefinition(h))
					continue
				}
				raw = appendValue(raw, dtype, v)
				size := width(t, dtype)
				given = append(given, float64(widen(raw[len(raw)-size:], size)))
			}
		}
		q, err := NewQuantizer(dtype, hidden)
		if err != nil {
			t.Fatal(err)
		}
		fp8, loss, err := q.Rows(nil, raw)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DequantizeRows(nil, fp8, "fp32", hidden)
		if err != nil {
			t.Fatal(err)
		}
		var sum, most float64
		for row := range rows {
			var lost, all float64
			for i := row * hidden; i < (row+1)*hidden; i++ {
				d := given[i] - float64(widen(back[4*i:], 4))
				lost, all = lost+d*d, all+given[i]*given[i]
			}
			if all > 0 {
				sum, most = sum+math.Sqrt(lost/all), max(most, math.Sqrt(lost/all))
			}
		}
		if loss.Rows != rows || math.Abs(loss.Sum-sum) > 1e-6*sum || math.Abs(loss.Max-most) > 1e-6*most {
			t.Errorf("%s: %+v, want sum %v, max %v", dtype, loss, sum, most)
		}
		if loss.Max > 1.0/16 || loss.Sum == 0 {
			t.Errorf("%s: %+v is not what fp8 costs", dtype, loss)
		}
	}
}

// halfByDefinition is the value of an fp16 number.
func halfByDefinition(h uint16) float64 {
	exp, frac := int(h>>10&31), float64(h&1023)
	v := math.Ldexp(1024+frac, exp-25)
	if exp == 0 {
		v = math.Ldexp(frac, -24)
	}
	return math.Copysign(v, 0.5-float64(h>>15))
}

func BenchmarkQuantize(b *testing.B) {
	const hidden = 4096
	r := rand.New(rand.NewPCG(5, 6))
	for _, dtype := range []string{"bf16", "fp32"} {
		var raw []byte
		for range 64 * hidden {
			raw = appendValue(raw, dtype, float32(r.NormFloat64()))
		}
		q, err := NewQuantizer(dtype, hidden)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(dtype, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			var out []byte
			for b.Loop() {
				if out, _, err = q.Rows(out[:0], raw); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
