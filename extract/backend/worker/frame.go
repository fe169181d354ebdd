package worker

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Version is the protocol's, as START and HELLO tell it.
const Version = 1

// Type is a frame's type.
type Type uint8

// The frame types; PROTOCOL.md says who sends them when.
const (
	Start Type = iota + 1
	Hello
	Req
	Resp
	Fail
	Ping
	Pong
	Log
	Bye
)

func (t Type) String() string {
	names := [...]string{Start: "START", Hello: "HELLO", Req: "REQ", Resp: "RESP", Fail: "ERR", Ping: "PING", Pong: "PONG", Log: "LOG", Bye: "BYE"}
	if t >= Start && t <= Bye {
		return names[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Frame is one message.
type Frame struct {
	Type Type
	Seq  uint32 // of the request it belongs to; chosen by the host
	Meta []byte // JSON; may be empty
	Body []byte
	Sum  bool // a CRC-32 of the body follows it
}

const (
	magic      = "EHS1"
	headerSize = 24
	// MaxMeta bounds a frame's JSON.
	MaxMeta = 1 << 20
	flagSum = 1
)

// ErrFrame is matched by every error that says that the peer is out of step.
var ErrFrame = errors.New("broken frame")

// WriteFrame writes f.
func WriteFrame(w io.Writer, f Frame) error {
	if len(f.Meta) > MaxMeta {
		return fmt.Errorf("%w: %s with %d bytes of meta", ErrFrame, f.Type, len(f.Meta))
	}
	head := make([]byte, headerSize, headerSize+len(f.Meta))
	copy(head, magic)
	head[4] = byte(f.Type)
	if f.Sum {
		head[5] = flagSum
	}
	binary.LittleEndian.PutUint32(head[8:], uint32(len(f.Meta)))
	binary.LittleEndian.PutUint32(head[12:], f.Seq)
	binary.LittleEndian.PutUint64(head[16:], uint64(len(f.Body)))
	parts := [][]byte{append(head, f.Meta...), f.Body}
	if f.Sum {
		parts = append(parts, binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(f.Body)))
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// Reader reads frames.
type Reader struct {
	r       io.Reader
	maxBody int
	buf     []byte
}

// NewReader reads frames from r whose bodies have at most maxBody bytes.
func NewReader(r io.Reader, maxBody int) *Reader { return &Reader{r: r, maxBody: maxBody} }

// Next reads a frame; Meta and Body are valid until the next call. At the clean
// end of the stream it returns io.EOF.
func (r *Reader) Next() (Frame, error) {
	var head [headerSize]byte
	if n, err := io.ReadFull(r.r, head[:]); err != nil {
		if n > 0 {
			return Frame{}, fmt.Errorf("%w: the stream ends in a header: %w", ErrFrame, err)
		}
		return Frame{}, err
	}
	f := Frame{Type: Type(head[4]), Seq: binary.LittleEndian.Uint32(head[12:]), Sum: head[5]&flagSum != 0}
	meta, body := binary.LittleEndian.Uint32(head[8:]), binary.LittleEndian.Uint64(head[16:])
	switch {
	case string(head[:4]) != magic:
		return f, fmt.Errorf("%w: it begins with %q, want %q", ErrFrame, head[:4], magic)
	case f.Type < Start || f.Type > Bye:
		return f, fmt.Errorf("%w: %s", ErrFrame, f.Type)
	case head[5]&^flagSum != 0 || head[6] != 0 || head[7] != 0:
		return f, fmt.Errorf("%w: %s: reserved bits are set", ErrFrame, f.Type)
	case meta > MaxMeta || body > uint64(r.maxBody):
		return f, fmt.Errorf("%w: %s with %d bytes of meta and %d of body: at most %d and %d are taken", ErrFrame, f.Type, meta, body, MaxMeta, r.maxBody)
	}
	size := int(meta) + int(body)
	if f.Sum {
		size += 4
	}
	if cap(r.buf) < size {
		r.buf = make([]byte, size)
	}
	b := r.buf[:size]
	if _, err := io.ReadFull(r.r, b); err != nil {
		return f, fmt.Errorf("%w: %s: the stream ends in it: %w", ErrFrame, f.Type, err)
	}
	f.Meta, f.Body = b[:meta:meta], b[meta:int(meta)+int(body)]
	if f.Sum {
		if want := binary.LittleEndian.Uint32(b[len(b)-4:]); crc32.ChecksumIEEE(f.Body) != want {
			return f, fmt.Errorf("%w: %s: the body's checksum does not match", ErrFrame, f.Type)
		}
	}
	return f, nil
}

// decode reads a frame's meta. Unknown fields are left alone: they are the
// room that later versions have.
func (f Frame) decode(v any) error {
	if err := json.Unmarshal(f.Meta, v); err != nil {
		return fmt.Errorf("%w: %s: meta: %w", ErrFrame, f.Type, err)
	}
	return nil
}

// StartMeta is what the host asks a worker to be.
type StartMeta struct {
	Proto   int    `json:"proto"`
	Model   string `json:"model"`    // directory or name
	Layers  []int  `json:"layers"`   // ids to capture, ascending
	DType   string `json:"dtype"`    // of the rows: bf16, fp16, fp32
	Device  string `json:"device"`   // cpu, cuda, cuda:1, auto …; "": the worker's choice
	Worker  int    `json:"worker"`   // number of this worker,
	Workers int    `json:"workers"`  // of so many
	MaxBody int    `json:"max_body"` // bytes of one RESP body
}

// HelloMeta is what a worker says it is, once it can compute.
type HelloMeta struct {
	Proto         int    `json:"proto"`
	Engine        string `json:"engine"`
	EngineVersion string `json:"engine_version"`
	Model         string `json:"model"`
	Hidden        int    `json:"hidden_size"`
	NumLayers     int    `json:"num_layers"`
	Vocab         int    `json:"vocab_size"`
	Layers        []int  `json:"layers"`
	DType         string `json:"dtype"`
	LastPreNorm   bool   `json:"last_prenorm"`
	MaxTokens     int    `json:"max_tokens"`   // 0: no bound
	MaxInFlight   int    `json:"max_inflight"` // credit; at least 1
	Deterministic bool   `json:"deterministic"`
}

// RespMeta describes rows [First, First+Shape[0]) of an answer.
type RespMeta struct {
	First  int     `json:"first"`
	Shape  [3]int  `json:"shape"` // rows, layers, hidden size
	DType  string  `json:"dtype"`
	Tokens *uint32 `json:"tokens_crc32,omitempty"` // of the ids as used, u32 LE; on the first frame
}

// FailMeta is what went wrong.
type FailMeta struct {
	Code      string `json:"code"` // too_long, bad_token, oom, internal; setup where no request is meant
	Retryable bool   `json:"retryable"`
	Message   string `json:"message"`
}
