package trainer

import (
	"encoding/json"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"eaglebatch/extract/export"
)

// Names of the files of a table, as HF datasets' save_to_disk has them.
const (
	TableData  = "data-00000-of-00001.arrow"
	TableInfo  = "dataset_info.json"
	TableState = "state.json"
)

// A batch of the table ends at so many rows or tokens.
const (
	batchRows   = 1000
	batchTokens = 1 << 20
)

// WriteTable writes the rows as an Arrow stream with the columns that
// speculators reads: input_ids and loss_mask, lists of int64, and seq_len.
func WriteTable(w io.Writer, rows iter.Seq2[*export.Row, error]) error {
	list := arrow.ListOf(arrow.PrimitiveTypes.Int64)
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "input_ids", Type: list, Nullable: true},
		{Name: "loss_mask", Type: list, Nullable: true},
		{Name: "seq_len", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	out := ipc.NewWriter(w, ipc.WithSchema(schema))
	flush := func() error {
		batch := b.NewRecordBatch()
		defer batch.Release()
		return out.Write(batch)
	}
	n, tokens := 0, 0
	for r, err := range rows {
		if err != nil {
			return err
		}
		appendRow(b, r)
		n, tokens = n+1, tokens+len(r.IDs)
		if n >= batchRows || tokens >= batchTokens {
			if err := flush(); err != nil {
				return err
			}
			n, tokens = 0, 0
		}
	}
	if n > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	return out.Close()
}

func appendRow(b *array.RecordBuilder, r *export.Row) {
	ids, mask := b.Field(0).(*array.ListBuilder), b.Field(1).(*array.ListBuilder)
	ids.Append(true)
	for _, id := range r.IDs {
		ids.ValueBuilder().(*array.Int64Builder).Append(int64(id))
	}
	mask.Append(true)
	for _, m := range r.Mask {
		mask.ValueBuilder().(*array.Int64Builder).Append(int64(m))
	}
	b.Field(2).(*array.Int64Builder).Append(int64(len(r.IDs)))
}

// TableFiles returns the files that lie beside the data. fingerprint names the
// content.
func TableFiles(fingerprint string) (map[string][]byte, error) {
	value := map[string]any{"dtype": "int64", "_type": "Value"}
	list := map[string]any{"feature": value, "_type": "Sequence"}
	info, err := json.Marshal(map[string]any{
		"citation": "", "description": "", "homepage": "", "license": "",
		"features": map[string]any{"input_ids": list, "loss_mask": list, "seq_len": value},
	})
	if err != nil {
		return nil, err
	}
	state, err := json.Marshal(map[string]any{
		"_data_files":  []any{map[string]any{"filename": TableData}},
		"_fingerprint": fingerprint, "_format_columns": nil, "_format_kwargs": map[string]any{},
		"_format_type": "torch", "_output_all_columns": false, "_split": nil,
	})
	return map[string][]byte{TableInfo: info, TableState: state}, err
}
