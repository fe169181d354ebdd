package cli

import (
	"os/exec"
	"testing"
)

// TestQuote: a shell gives back every word as it was.
func TestQuote(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell here")
	}
	for _, s := range []string{"", "plain-1.2/x_y", "two words", "it's", "a`id`b", "$HOME", "{a,b}", "a!b", "~", "ü n", "x\ny", `back\slash`, "old+new", "[2,30]", "a=b;c"} {
		out, err := exec.CommandContext(t.Context(), sh, "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q comes back as %q, %v", s, out, err)
		}
	}
	if quote("plan.yaml") != "plan.yaml" {
		t.Error("what needs no quotes gets them")
	}
}
