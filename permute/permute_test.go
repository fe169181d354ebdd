package permute

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func identity(n int) []uint32 {
	a := make([]uint32, n)
	for i := range a {
		a[i] = uint32(i)
	}
	return a
}

type goldenOrder struct {
	Seed   string   `json:"seed"`
	N      int      `json:"n"`
	First  []uint32 `json:"first"`
	SHA256 string   `json:"sha256"`
}

func (g goldenOrder) seed(t *testing.T) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(g.Seed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return seed
}

func readGolden(t *testing.T) (g struct{ Orders, Feistel []goldenOrder }) {
	t.Helper()
	b, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Orders) < 50 || len(g.Feistel) < 20 {
		t.Fatalf("%d golden orders, %d of feistel", len(g.Orders), len(g.Feistel))
	}
	return g
}

// TestGoldenOrders compares with orders that numpy made.
func TestGoldenOrders(t *testing.T) {
	for _, g := range readGolden(t).Orders {
		a := identity(g.N)
		newPCG64(g.seed(t)).shuffle(a)
		if d := cmp.Diff(g.First, a[:min(12, g.N)]); d != "" {
			t.Errorf("seed %s, n %d (-numpy +here):\n%s", g.Seed, g.N, d)
		}
		var buf bytes.Buffer
		if err := binary.Write(&buf, binary.LittleEndian, a); err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(buf.Bytes()); hex.EncodeToString(sum[:]) != g.SHA256 {
			t.Errorf("seed %s, n %d: the order differs from numpy's", g.Seed, g.N)
		}
	}
}

// TestGoldenFeistel holds the numbers still: an order must stay what it was in
// the version that recorded it.
func TestGoldenFeistel(t *testing.T) {
	for _, g := range readGolden(t).Feistel {
		f := newFeistel(uint64(g.N), g.seed(t))
		var got []uint32
		for i := range g.First {
			got = append(got, uint32(f.at(uint64(i))))
		}
		if d := cmp.Diff(g.First, got); d != "" {
			t.Errorf("seed %s, n %d (-want +got):\n%s", g.Seed, g.N, d)
		}
	}
}

func TestFeistelIsAPermutation(t *testing.T) {
	for _, n := range []uint64{2, 3, 5, 1000, feistelLeast, feistelLeast + 1, 300_007} {
		for seed := range uint64(3) {
			f := newFeistel(n, seed)
			seen := newSet(int64(n))
			for i := range n {
				x := f.at(i)
				if x >= n || seen.has(int64(x)) {
					t.Fatalf("n %d, seed %d: %d at %d is out of range or repeated", n, seed, x, i)
				}
				seen.put(int64(x))
			}
		}
	}
}

// TestFeistelSpreads looks at the joint distribution of place and value in a
// 64 by 64 grid: chi-square within five standard deviations.
func TestFeistelSpreads(t *testing.T) {
	const n, grid, seeds = 1 << 17, 64, 8
	cells := make([]int, grid*grid)
	for seed := range uint64(seeds) {
		f := newFeistel(n, seed)
		for i := range uint64(n) {
			cells[i*grid/n*grid+f.at(i)*grid/n]++
		}
	}
	want, chi := float64(n*seeds)/(grid*grid), 0.0
	for _, c := range cells {
		chi += (float64(c) - want) * (float64(c) - want) / want
	}
	const df, sd = grid*grid - 1, 90.5 // sqrt(2*df)
	if chi < df-5*sd || chi > df+5*sd {
		t.Errorf("chi-square %.0f, want about %d", chi, df)
	}
}

// TestChooseIsUniform counts how often each of 10 is among 3 chosen.
func TestChooseIsUniform(t *testing.T) {
	const n, k, rounds = 10, 3, 30_000
	var counts [n]int
	for i := range rounds {
		s := choose(drawer(uint64(i), "test", "x"), n, k)
		got := 0
		for j := range n {
			if s.has(int64(j)) {
				counts[j]++
				got++
			}
		}
		if got != k {
			t.Fatalf("%d chosen, want %d", got, k)
		}
	}
	for j, c := range counts {
		if c < 8700 || c > 9300 { // 9000, four standard deviations are 317
			t.Errorf("%d was chosen %d times of 9000 expected", j, c)
		}
	}
	if s := choose(drawer(1, "test", "x"), 7, 7); !slices.Equal([]uint64(s), []uint64{0x7f}) {
		t.Errorf("7 of 7: %x", s)
	}
	if s := choose(drawer(1, "test", "x"), 7, 0); s[0] != 0 {
		t.Errorf("0 of 7: %x", s)
	}
}

func BenchmarkShuffle(b *testing.B) {
	for _, n := range []int{40_000, 5_000_000} {
		a := identity(n)
		b.Run(fmt.Sprintf("numpy-%d", n), func(b *testing.B) {
			for b.Loop() {
				newPCG64(42).shuffle(a)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
		})
		b.Run(fmt.Sprintf("feistel-%d", n), func(b *testing.B) {
			for b.Loop() {
				f := newFeistel(uint64(n), 42)
				for i := range uint64(n) {
					f.at(i)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
		})
	}
}
