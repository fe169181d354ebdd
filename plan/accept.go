package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"eaglebatch/internal/human"
	"eaglebatch/store/blob"
)

// acceptKeys are the keys of a decision: those of the configuration's plan
// section that change what is planned, and gc.
func acceptKeys() []string {
	return []string{"max_tokens", "overlong", "max_tokens_per_dataset", "layers", "dtype", "rows", "drop", "reserve", "blob_size", "gc"}
}

// ParseAccept reads a decision: KEY=VALUE pairs with commas between them. Lists
// have + between their members: drop=A1+B2, layers=2+30+58+61, gc=old-10k+old-20k.
// A key may come once, but drop and gc may come again and then add up. The values
// are checked and returned as the configuration has them (layers as [2,30,58,61];
// drop and gc keep their +).
func ParseAccept(text string) (map[string]string, error) {
	out := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !slices.Contains(acceptKeys(), key) {
			return nil, fmt.Errorf("no key %q: %s", key, suggestion(key, acceptKeys()))
		}
		if !ok || value == "" {
			return nil, fmt.Errorf("%s has no value: want %s=VALUE", key, key)
		}
		if before, again := out[key]; again {
			if key != "drop" && key != "gc" {
				return nil, fmt.Errorf("%s is given twice: %s and %s", key, before, value)
			}
			value = before + "+" + value
		}
		v, err := acceptValue(key, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out[key] = v
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing is decided: want KEY=VALUE with %s", strings.Join(acceptKeys(), ", "))
	}
	return out, nil
}

func acceptValue(key, value string) (string, error) {
	switch key {
	case "max_tokens", "max_tokens_per_dataset":
		if n, err := strconv.ParseInt(value, 10, 64); err != nil || n < 0 {
			return "", fmt.Errorf("%q is not a number of tokens (0: no bound)", value)
		}
	case "overlong":
		return value, oneOf(value, Truncate, Skip, Split)
	case "dtype":
		return value, oneOf(value, "bf16", "fp16", "fp32", "fp8")
	case "rows":
		// The value itself may hold a plus, as one word.
		return value, oneOf(value, blob.RowsAll, blob.RowsLastSupervised, blob.RowsCutTail, blob.RowsBoth)
	case "layers":
		return acceptLayers(value)
	case "reserve":
		_, err := human.ParseShare(value)
		return value, err
	case "blob_size":
		_, err := human.ParseSize(value)
		return value, err
	case "drop", "gc":
		names := strings.Split(value, "+")
		for _, n := range names {
			if n == "" {
				return "", fmt.Errorf("%q holds an empty name", value)
			}
		}
		slices.Sort(names)
		return strings.Join(slices.Compact(names), "+"), nil
	}
	return value, nil
}

func acceptLayers(value string) (string, error) {
	if value == "auto" {
		return value, nil
	}
	ids := strings.Split(value, "+")
	for _, s := range ids {
		if n, err := strconv.Atoi(s); err != nil || n < 0 {
			return "", fmt.Errorf("%q: want auto, or layer ids with + between them", value)
		}
	}
	return "[" + strings.Join(ids, ",") + "]", nil
}

func oneOf(value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("%q: %s", value, suggestion(value, known))
}
