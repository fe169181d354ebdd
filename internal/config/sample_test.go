package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestSample: the sample names every key, and what it says of defaults is true.
func TestSample(t *testing.T) {
	sections := map[string]reflect.Type{"": reflect.TypeFor[Config]()}
	for i := range sections[""].NumField() {
		if f := sections[""].Field(i); f.Type.Kind() == reflect.Struct {
			sections[f.Tag.Get("yaml")] = f.Type
		}
	}
	for name, typ := range sections {
		text := Sample
		if name != "" {
			_, text, _ = strings.Cut(Sample, "\n"+name+":\n")
			text, _, _ = strings.Cut(text, "\n\n")
		}
		for _, key := range keysOf(typ) {
			if !regexp.MustCompile(`(?m)^(  )?(# )?` + key + `:`).MatchString(text) {
				t.Errorf("section %q lacks the key %s", name, key)
			}
		}
	}
	all := regexp.MustCompile(`(?m)^  # ([a-z])`).ReplaceAllString(Sample, "  $1")
	want := Default()
	want.Plan.MaxTokens = 8192
	for name, text := range map[string]string{"as it is": Sample, "with every default": all} {
		c, err := load(t, text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		ignore := cmpopts.IgnoreFields(Config{}, "Work", "Datasets", "Model", "File", "PlanText")
		if d := cmp.Diff(want, c, ignore, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-default +sample):\n%s", name, d)
		}
		if len(c.Datasets) != 1 || c.Model == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}
