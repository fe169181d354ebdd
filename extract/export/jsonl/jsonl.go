// Package jsonl writes samples as JSON lines, the form in which eaglebatch
// itself and most other programs read tokenized datasets:
//
//	{"id":"a7","input_ids":[1,5,9],"loss_mask":[0,1,1],"source":"A_chat","index":0,"file":"a.jsonl","line":1}
//
// id is left out where the source had none, window is there for a part of a
// sample that is split, segments where asked for.
package jsonl

import (
	"encoding/json"
	"strconv"

	"eaglebatch/extract/export"
)

// Options chooses what a line holds.
type Options struct {
	Segments bool // where prompt, reasoning, response and tool calls end
}

// Append appends the line of r, with its newline, to dst.
func Append(dst []byte, r *export.Row, o Options) ([]byte, error) {
	dst = append(dst, '{')
	if r.ID != "" {
		var err error
		if dst, err = appendText(append(dst, `"id":`...), r.ID); err != nil {
			return dst, err
		}
		dst = append(dst, ',')
	}
	dst = append(dst, `"input_ids":[`...)
	for i, id := range r.IDs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	dst = append(dst, `],"loss_mask":[`...)
	for i, m := range r.Mask {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '0'+m)
	}
	dst = append(dst, `],"source":`...)
	return appendOrigin(dst, r, o)
}

func appendOrigin(dst []byte, r *export.Row, o Options) ([]byte, error) {
	dst, err := appendText(dst, r.Dataset)
	if err != nil {
		return dst, err
	}
	dst = strconv.AppendUint(append(dst, `,"index":`...), r.Sample, 10)
	if r.Window > 0 {
		dst = strconv.AppendUint(append(dst, `,"window":`...), uint64(r.Window), 10)
	}
	if r.File != "" {
		if dst, err = appendText(append(dst, `,"file":`...), r.File); err != nil {
			return dst, err
		}
	}
	if r.Line > 0 {
		dst = strconv.AppendInt(append(dst, `,"line":`...), r.Line, 10)
	}
	if o.Segments {
		dst = append(dst, `,"segments":[`...)
		for i, s := range r.Segments {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendText(append(dst, `{"kind":`...), s.Kind); err != nil {
				return dst, err
			}
			dst = append(strconv.AppendUint(append(dst, `,"end":`...), uint64(s.End), 10), '}')
		}
		dst = append(dst, ']')
	}
	return append(dst, "}\n"...), nil
}

func appendText(dst []byte, s string) ([]byte, error) {
	b, err := json.Marshal(s)
	return append(dst, b...), err
}
