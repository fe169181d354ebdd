// Package human turns sizes, shares, durations and counts into text and back.
package human

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes. It parses "512M", "4GiB", "1.5 TB" and "1048576":
// K, M, G, T and KiB … are powers of 1024, KB, MB, GB, TB powers of 1000.
type Size int64

var units = []struct {
	suffix string
	mult   float64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

// ParseSize parses a size.
func ParseSize(s string) (Size, error) {
	t, mult := strings.ToLower(strings.TrimSpace(s)), 1.0
	for _, u := range units {
		if strings.HasSuffix(t, u.suffix) {
			t, mult = strings.TrimSpace(strings.TrimSuffix(t, u.suffix)), u.mult
			break
		}
	}
	v, err := strconv.ParseFloat(t, 64)
	if err != nil || v < 0 || math.IsNaN(v) || v*mult >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is not a size (examples: 512M, 4GiB, 1.5TB)", s)
	}
	if mult == 1 && v != math.Trunc(v) {
		return 0, fmt.Errorf("%q is a part of a byte: give a unit (examples: 512M, 4GiB, 1.5TB)", s)
	}
	return Size(v * mult), nil
}

// String gives binary units with at most three digits: "1.25 GiB".
func (s Size) String() string { return Bytes(int64(s)) }

// Bytes formats n in binary units.
func Bytes(n int64) string {
	v, i := float64(n), 0
	names := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for math.Abs(v) >= 1024 && i < len(names)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return trim3(v) + " " + names[i]
}

// Sized formats n in binary units and, as disks are sold, in decimal ones:
// "861 GiB = 924 GB".
func Sized(n int64) string {
	v, i := float64(n), 0
	names := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	for math.Abs(v) >= 1000 && i < len(names)-1 {
		v /= 1000
		i++
	}
	if i == 0 {
		return Bytes(n)
	}
	return fmt.Sprintf("%s = %s %s", Bytes(n), trim3(v), names[i])
}

func trim3(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// Count groups digits: 138,400,000.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if neg {
		return "-" + s
	}
	return s
}

// Plural counts things: "1 blob", "2,048 blobs".
func Plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return Count(n) + " " + thing + "s"
}

// Duration gives at most two units: "1h02m", "3m20s", "4.2s".
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// Share is a part of a whole, "1%", or an absolute number.
type Share struct {
	Fraction float64 // of the whole, where Relative
	Absolute int64
	Relative bool
}

// ParseShare parses "5%" or an absolute size or count.
func ParseShare(s string) (Share, error) {
	t := strings.TrimSpace(s)
	if p, ok := strings.CutSuffix(t, "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || v < 0 || v > 100 || math.IsNaN(v) {
			return Share{}, fmt.Errorf("%q is not a share between 0%% and 100%%", s)
		}
		return Share{Fraction: v / 100, Relative: true}, nil
	}
	if v, err := strconv.ParseFloat(t, 64); err == nil && v != math.Trunc(v) {
		return Share{}, fmt.Errorf("%q is not a whole number: write a share with a percent sign, as 5%%", s)
	}
	n, err := ParseSize(t)
	if err != nil {
		return Share{}, fmt.Errorf("%q is neither a share such as 5%% nor a number", s)
	}
	return Share{Absolute: int64(n)}, nil
}

// Of returns the share of whole, rounded down.
func (s Share) Of(whole int64) int64 {
	if s.Relative {
		return int64(s.Fraction * float64(whole))
	}
	return s.Absolute
}

// String is what ParseShare read.
func (s Share) String() string {
	if s.Relative {
		return strconv.FormatFloat(s.Fraction*100, 'f', -1, 64) + "%"
	}
	return strconv.FormatInt(s.Absolute, 10)
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(b []byte) (err error) {
	*s, err = ParseSize(string(b))
	return err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(b []byte) (err error) {
	*s, err = ParseShare(string(b))
	return err
}

// Percent formats a share of one: "99.8%". Only a whole is "100%", only
// nothing is "0%".
func Percent(x float64) string {
	switch {
	case x > 0 && x < 0.001:
		return "<0.1%"
	case x < 1 && x > 0.999:
		return ">99.9%"
	}
	return strings.TrimSuffix(strconv.FormatFloat(100*x, 'f', 1, 64), ".0") + "%"
}
