package progress

import (
	"strings"
	"testing"
)

func TestNumbered(t *testing.T) {
	var out strings.Builder
	r := Numbered{Reporter: NewRenderer(&out, false, false), Names: []string{"merge", "shuffle"}}
	for _, name := range []string{"shuffle", "export"} {
		r.Start(Phase{Name: name, Unit: "samples", Total: 4})
		r.Add(Delta{Units: 4})
		r.Finish()
	}
	for _, want := range []string{"[2/2] shuffle  0 / 4 samples", "[2/2] shuffle  4 / 4 samples", "\nexport  0 / 4 samples"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, out.String())
		}
	}
}
