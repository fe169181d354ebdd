package sglang

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
)

func TestDecode(t *testing.T) {
	good := "[[1, -2.5e0,0.0],\n[3.3895313892515355e+38 ,1e-45,  -0 ]]"
	if _, err := decode([]byte(good), 2, 3); !errors.Is(err, errNotBF16) {
		t.Errorf("a number below bf16's: %v", err)
	}
	good = "[[1, -2.5e0,0.0],\n[3.3895313892515355e+38 ,9.183549615799121e-41,  -0.0 ]]"
	out, err := decode([]byte(good), 2, 3)
	want := []byte{0x80, 0x3f, 0x20, 0xc0, 0, 0, 0x7f, 0x7f, 1, 0, 0, 0x80}
	if err != nil || string(out) != string(want) {
		t.Errorf("%x, %v, want %x", out, err, want)
	}
	var width *widthError
	var rows *rowsError
	for text, ok := range map[string]func(error) bool{
		"[[1],[2]]":         func(err error) bool { return errors.As(err, &width) && width.values == 1 },
		"[[1,2,3,4,5]]":     func(err error) bool { return errors.As(err, &width) && width.values == 5 },
		"[[1,2,3]]":         func(err error) bool { return errors.As(err, &rows) && rows.rows == 1 },
		"[[1,2,3],[],[1]]":  func(err error) bool { return errors.As(err, &width) && width.token == 1 },
		"[]":                func(err error) bool { return errors.As(err, &rows) && rows.rows == 0 },
		"[[1,2,null],[1]]":  func(err error) bool { return errors.Is(err, errNotFinite) },
		"[[1,2,1e39],[1]]":  func(err error) bool { return errors.Is(err, errNotFinite) },
		"[[1,2,1e999],[1]]": func(err error) bool { return errors.Is(err, errNotFinite) },
		"[[1,2,0.1],[1]]":   func(err error) bool { return errors.Is(err, errNotBF16) },
		"[1,2,3]":           func(err error) bool { return err != nil },
		"[[\"1\",2,3]]":     func(err error) bool { return err != nil },
		"[[[1],2,3]]":       func(err error) bool { return err != nil },
		"[[true,2,3]]":      func(err error) bool { return err != nil },
		"null":              func(err error) bool { return err != nil },
		"{}":                func(err error) bool { return err != nil },
	} {
		if out, err := decode([]byte(text), 2, 3); !ok(err) || out != nil {
			t.Errorf("%s: %x, %v", text, out, err)
		}
	}
}

// FuzzDecode holds the decoder to encoding/json on everything that is JSON.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"[[1,2],[3,-4.5]]", "[[1,null],[0,0]]", "[[1e38,1E-38],[ 0.1 , 2 ]]", "[1,2]", "[[1,2]]", "[[1,2],[3,4],[5,6]]", "[[1,2,3],[4]]",
		"[[[1]],[2,3]]", `[["1",2],[{},3]]`, "[[1,2],[3,4]] ", "{\"a\":[[1]]}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		out, err := decode(text, 2, 2)
		var rows [][]*float64
		ok := json.Unmarshal(text, &rows) == nil && len(rows) == 2
		var want []byte
		for _, row := range rows {
			ok = ok && len(row) == 2
			for _, v := range row {
				if v == nil {
					ok = false
					break
				}
				bits := math.Float32bits(float32(*v))
				ok = ok && bits&0xffff == 0 && bits>>23&0xff != 0xff
				want = append(want, byte(bits>>16), byte(bits>>24))
			}
		}
		if ok != (err == nil) || ok && string(out) != string(want) {
			t.Fatalf("%s: %x, %v; encoding/json reads %x", text, out, err, want)
		}
	})
}

// BenchmarkDecode prints what one core decodes.
func BenchmarkDecode(b *testing.B) {
	const tokens, hidden = 64, 4096
	row := make([]float32, hidden)
	for i := range row {
		row[i] = math.Float32frombits((0x3f800000 + uint32(i*7919%16384)<<16) & 0xbfff0000)
	}
	rows := make([][]float32, tokens)
	for i := range rows {
		rows[i] = row
	}
	text, err := json.Marshal(rows)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := decode(text, tokens, hidden); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(tokens*hidden*b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}
