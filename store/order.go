package store

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"eaglebatch/internal/fsx"
)

const (
	orderMagic   = "EBORDER\n"
	orderVersion = 1
	orderHead    = 16 // magic, version, zero
	orderTail    = 8  // number of rows
)

// WriteOrder writes the order file of id, which is rows in their order,
// atomically, and returns the hex sha256 of the file and the number of rows.
func (w *Workspace) WriteOrder(ctx context.Context, id uint32, rows iter.Seq[uint32]) (hash string, n int64, err error) {
	path := w.OrderPath(id)
	if err := w.opt.FS.MkdirAll(filepath.Dir(path)); err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	err = w.opt.FS.WriteFileAtomic(path, func(out io.Writer) error {
		n, err = encodeOrder(ctx, io.MultiWriter(out, sum), rows)
		return err
	})
	if err != nil {
		return "", 0, asSpace(path, 4*n, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), n, nil
}

func encodeOrder(ctx context.Context, out io.Writer, rows iter.Seq[uint32]) (n int64, err error) {
	bw := bufio.NewWriterSize(out, 1<<16)
	b := append([]byte(orderMagic), orderVersion, 0, 0, 0, 0, 0, 0, 0)
	for r := range rows {
		b = binary.LittleEndian.AppendUint32(b, r)
		if _, err := bw.Write(b); err != nil {
			return n, err
		}
		b = b[:0]
		if n++; n%(1<<20) == 0 && ctx.Err() != nil {
			return n, ctx.Err()
		}
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(n))
	if _, err := bw.Write(b); err != nil {
		return n, err
	}
	return n, errors.Join(ctx.Err(), bw.Flush())
}

// Order is an open order file, mapped: it costs page cache and no memory of
// the process. Safe for concurrent use until Close.
type Order struct {
	path string
	hash string
	data []byte // the file
	rows []byte // the rows in it
}

// OpenOrder opens the order file of r and checks its length; Verify checks its
// hash.
func (w *Workspace) OpenOrder(r OrderRow) (*Order, error) {
	path := w.OrderPath(r.ID)
	f, err := fsx.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &CorruptError{Path: path, Offset: -1, Err: err, Hint: hintRedoShuffle}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if want := orderHead + orderTail + 4*(r.N+r.Eval); st.Size() != want {
		return nil, &CorruptError{Path: path, Offset: -1, Err: fmt.Errorf("%d bytes long, should be %d", st.Size(), want), Hint: hintRedoShuffle}
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	rows, err := parseOrder(data)
	if err != nil {
		if errors.Is(err, ErrNewer) {
			err = fmt.Errorf("%s: %w", path, err)
		} else {
			err = &CorruptError{Path: path, Offset: -1, Err: err, Hint: hintRedoShuffle}
		}
		return nil, errors.Join(err, unix.Munmap(data))
	}
	return &Order{path: path, hash: r.Hash, data: data, rows: rows}, nil
}

const hintRedoShuffle = "'eaglebatch run --redo shuffle' makes the order anew"

// parseOrder returns the rows' bytes in an order file.
func parseOrder(data []byte) ([]byte, error) {
	if len(data) < orderHead+orderTail || string(data[:8]) != orderMagic {
		return nil, errors.New("not an order file")
	}
	if v := binary.LittleEndian.Uint32(data[8:]); v > orderVersion {
		return nil, fmt.Errorf("order file of version %d: %w", v, ErrNewer)
	} else if v != orderVersion || binary.LittleEndian.Uint32(data[12:]) != 0 {
		return nil, fmt.Errorf("order file with a bad header, version %d", v)
	}
	rows := data[orderHead : len(data)-orderTail]
	n := binary.LittleEndian.Uint64(data[len(data)-orderTail:])
	if len(rows)%4 != 0 || n != uint64(len(rows)/4) {
		return nil, fmt.Errorf("%d bytes of rows, the end says %d rows", len(rows), n)
	}
	return rows, nil
}

// Len returns the number of rows, eval positions included.
func (o *Order) Len() int64 { return int64(len(o.rows) / 4) }

// At returns row i, 0 <= i < Len.
func (o *Order) At(i int64) uint32 { return binary.LittleEndian.Uint32(o.rows[4*i:]) }

// Verify reads the whole file and compares its hash.
func (o *Order) Verify() error {
	sum := sha256.Sum256(o.data)
	if got := hex.EncodeToString(sum[:]); got != o.hash {
		return &CorruptError{Path: o.path, Offset: -1, Err: fmt.Errorf("sha256 is %s, the ledger says %s", got, o.hash), Hint: hintRedoShuffle}
	}
	return nil
}

// Close unmaps the file.
func (o *Order) Close() error {
	data := o.data
	o.data, o.rows = nil, nil
	if data == nil {
		return nil
	}
	return unix.Munmap(data)
}
