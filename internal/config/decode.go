package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"eaglebatch/internal/human"

	"go.yaml.in/yaml/v3"
)

// Override is a value from the command line or a recorded decision, laid over
// the file: Key is a dotted path such as plan.max_tokens.
type Override struct {
	Key, Value string
	From       string // for messages: "--seed", "the recorded decision"
}

// decoder fills structs from YAML nodes and collects every error, so that a
// file is mended in one go.
type decoder struct {
	file string
	errs []error
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("%s:%d: %s", d.file, n.Line, fmt.Sprintf(format, args...)))
}

func (d *decoder) decode(n *yaml.Node, into any, path string) {
	d.value(n, reflect.ValueOf(into).Elem(), path)
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if isNull(n) {
		return // "key:" with nothing keeps the default
	}
	switch p := v.Addr().Interface().(type) {
	case *time.Duration:
		x, err := time.ParseDuration(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil || x < 0 {
			d.fail(n, "%s: %q is not a duration (examples: 30s, 24h)", path, n.Value)
			return
		}
		*p = x
		return
	case *Layers:
		d.layers(n, p, path)
		return
	case encoding.TextUnmarshaler:
		if n.Kind != yaml.ScalarNode {
			d.fail(n, "%s: want a single value", path)
		} else if err := p.UnmarshalText([]byte(n.Value)); err != nil {
			d.fail(n, "%s: %v", path, err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, path)
	case reflect.Slice:
		d.slice(n, v, path)
	default:
		d.scalar(n, v, path)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.ScalarNode {
		d.fail(n, "%s: want a single value", path)
		return
	}
	if v.Kind() == reflect.String {
		v.SetString(n.Value) // 42 and true are text where text is wanted
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil || !exact(n, v.Kind()) {
		d.fail(n, "%s: %q is not %s", path, n.Value, kindName(v.Kind()))
	}
}

// exact refuses what decoding would bend: 1.5 where a whole number is wanted,
// which the library cuts to 1, and numbers that are none.
func exact(n *yaml.Node, k reflect.Kind) bool {
	if n.ShortTag() != "!!float" {
		return true
	}
	var f float64
	if err := n.Decode(&f); err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return false
	}
	return k == reflect.Float64 || f == math.Trunc(f)
}

func kindName(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	case reflect.Uint64:
		return "a whole number of 0 or more"
	}
	return "a whole number"
}

func (d *decoder) slice(n *yaml.Node, v reflect.Value, path string) {
	items := n.Content
	switch {
	case n.Kind == yaml.ScalarNode && v.Type().Elem().Kind() == reflect.String:
		items = []*yaml.Node{n} // one value stands for a list of one
	case n.Kind != yaml.SequenceNode:
		d.fail(n, "%s: want a list", path)
		return
	}
	out := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, it := range items {
		if out.Index(i).Type() == reflect.TypeFor[Dataset]() {
			out.Index(i).Set(reflect.ValueOf(Dataset{Weight: 1}))
		}
		d.value(it, out.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
	v.Set(out)
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s: want keys and values", orTop(path))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		if line, dup := seen[k.Value]; dup {
			d.fail(k, "%s is given twice, first on line %d", join(path, k.Value), line)
			continue
		}
		seen[k.Value] = k.Line
		f, ok := field(v, k.Value)
		if !ok {
			d.unknown(k, v, path)
			continue
		}
		d.value(n.Content[i+1], f, join(path, k.Value))
	}
}

func (d *decoder) unknown(k *yaml.Node, v reflect.Value, path string) {
	keys := keysOf(v.Type())
	if near := human.Nearest(k.Value, keys); near != "" {
		d.fail(k, "unknown key %q in %s: did you mean %q?", k.Value, orTop(path), near)
		return
	}
	d.fail(k, "unknown key %q in %s: known are %s", k.Value, orTop(path), strings.Join(keys, ", "))
}

func (d *decoder) layers(n *yaml.Node, l *Layers, path string) {
	if n.Kind == yaml.ScalarNode && n.Value == "auto" {
		*l = Layers{Auto: true}
		return
	}
	var ids []int
	bent := func(id *yaml.Node) bool { return !exact(id, reflect.Int) }
	if n.Kind != yaml.SequenceNode || n.Decode(&ids) != nil || len(ids) == 0 || slices.ContainsFunc(n.Content, bent) {
		d.fail(n, "%s: want auto or a list of layer ids such as [2, 30, 58, 61]", path)
		return
	}
	*l = Layers{IDs: ids}
}

func (d *decoder) override(c *Config, o Override) {
	v := reflect.ValueOf(c).Elem()
	n := &yaml.Node{}
	if err := yaml.Unmarshal([]byte(o.Value), n); err != nil || len(n.Content) == 0 {
		d.errs = append(d.errs, fmt.Errorf("%s: %q is no value", o.From, o.Value))
		return
	}
	for _, k := range strings.Split(o.Key, ".") {
		f, ok := field(v, k)
		if !ok {
			d.errs = append(d.errs, fmt.Errorf("%s: unknown key %q", o.From, o.Key))
			return
		}
		v = f
	}
	sub := decoder{file: o.From}
	sub.value(n.Content[0], v, o.Key)
	d.errs = append(d.errs, sub.errs...)
}

// field finds the field for a key; what is no section has none.
func field(v reflect.Value, key string) (reflect.Value, bool) {
	t := v.Type()
	if t.Kind() != reflect.Struct || key == "" {
		return reflect.Value{}, false
	}
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag == key && tag != "-" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "-" {
			out = append(out, tag)
		}
	}
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func orTop(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}
