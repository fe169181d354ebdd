package human

import (
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int64
	}{
		{"1048576", 1 << 20}, {"512M", 512 << 20}, {"4GiB", 4 << 30}, {"1.5 TB", 1.5e12}, {"2kb", 2000}, {"7 B", 7}, {"0", 0},
	} {
		if got, err := ParseSize(c.in); err != nil || int64(got) != c.want {
			t.Errorf("%q: %d, %v; want %d", c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "x", "-1", "1e30", "NaN", "4 apples", "GiB", "1.5", "0.5 B"} {
		if got, err := ParseSize(bad); err == nil {
			t.Errorf("%q: %d, want an error", bad, got)
		}
	}
}

func TestParseShare(t *testing.T) {
	for in, want := range map[string]int64{"5%": 50, "100%": 1000, "0%": 0, "7": 7, "1KiB": 1024} {
		s, err := ParseShare(in)
		if err != nil || s.Of(1000) != want {
			t.Errorf("%q of 1000: %d, %v; want %d", in, s.Of(1000), err, want)
		}
	}
	for _, bad := range []string{"101%", "-1%", "%", "NaN%", "half", "0.05", "1.5"} {
		if s, err := ParseShare(bad); err == nil {
			t.Errorf("%q: %v, want an error", bad, s)
		}
	}
}

func TestFormats(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Bytes(0), "0 B"}, {Bytes(1536), "1.50 KiB"}, {Bytes(5 << 30), "5.00 GiB"},
		{Count(138400000), "138,400,000"}, {Count(-1234), "-1,234"}, {Count(999), "999"},
		{Plural(1, "blob"), "1 blob"}, {Plural(0, "blob"), "0 blobs"}, {Plural(2048, "blob"), "2,048 blobs"},
		{Duration(62 * time.Minute), "1h02m"}, {Duration(200 * time.Second), "3m20s"}, {Duration(4200 * time.Millisecond), "4.2s"},
		{Percent(1), "100%"}, {Percent(0.99999), ">99.9%"}, {Percent(0), "0%"}, {Percent(0.00001), "<0.1%"}, {Percent(0.125), "12.5%"},
		{Nearest("max_token", []string{"min_age", "max_tokens"}), "max_tokens"}, {Nearest("sttat", []string{"stat", "plan"}), "stat"}, {Nearest("zebra", []string{"stat", "plan"}), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
