package enginetest

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// write makes a file of states as the connector of the generation does.
func (v *VLLM) write(path string, ids []uint32, fault string) {
	data := v.file(ids, fault)
	if v.Gen == 1 {
		put(path, data, false, 0)
		return
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return // the directory is gone: the real one logs it
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		panic(err)
	}
	if fault == FaultLocked {
		v.mu.Lock()
		v.hung = append(v.hung, lock)
		v.mu.Unlock()
		return
	}
	v.writers.Go(func() {
		defer lock.Close() // also when the write failed
		if fault == FaultNoFile {
			time.Sleep(v.Delay)
			return
		}
		put(path, data, v.InPlace, v.Delay)
	})
}

// put writes a file whole under its name, or, as older writers, in place.
func put(path string, data []byte, inPlace bool, delay time.Duration) {
	if !inPlace {
		time.Sleep(delay)
		if os.WriteFile(path+".tmp", data, 0o600) == nil {
			_ = os.Rename(path+".tmp", path)
		}
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	if f.Truncate(int64(len(data))) == nil {
		head := int(min(8+binary.LittleEndian.Uint64(data), uint64(len(data))))
		_, _ = f.WriteAt(data[:head], 0)
		time.Sleep(delay)
		_, _ = f.WriteAt(data[head:], int64(head))
	}
}

// File renders the file that a sound server writes for ids.
func (v *VLLM) File(ids []uint32) []byte { return v.file(ids, "") }

// file renders a file of states, spoilt by fault.
func (v *VLLM) file(ids []uint32, fault string) []byte {
	layers, hidden, kind := v.Layers, v.Hidden, "BF16"
	switch fault {
	case FaultGarbage:
		return []byte("this is no file of tensors, however one looks at it")
	case FaultLayer:
		layers = layers[:len(layers)-1]
	case FaultHidden:
		hidden /= 2
	case FaultFloat:
		kind = "F16"
	case FaultWrongIDs:
		ids = slices.Clone(ids)
		ids[len(ids)-1]++
	}
	var states []byte
	if v.Fill == nil {
		states = Rows(ids, layers, hidden)
	} else {
		states = make([]byte, len(ids)*len(layers)*hidden*2)
		v.Fill(ids, states)
	}
	row := hidden * 2
	rows := len(ids)
	switch fault {
	case FaultShort:
		rows = (rows + 1) / 2
		states = states[:rows*len(layers)*row]
	case FaultNaN:
		states[row+1], states[row] = 0x7f, 0xc0
	case FaultZero:
		clear(states[len(states)-row:])
	case "garbage rows":
		for i := 0; i < len(states); i += 2 {
			states[i] ^= 0x55
		}
	}
	if v.Alter != nil {
		v.Alter(ids, states)
	}
	head := fmt.Sprintf(`{"token_ids":{"dtype":"I64","shape":[%d],"data_offsets":[0,%d]},"hidden_states":{"dtype":"%s","shape":[%d,%d,%d],"data_offsets":[%d,%d]}}`,
		len(ids), 8*len(ids), kind, rows, len(layers), hidden, 8*len(ids), 8*len(ids)+len(states))
	head += strings.Repeat(" ", (8-len(head)%8)%8)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	out = append(out, head...)
	for _, id := range ids {
		out = binary.LittleEndian.AppendUint64(out, uint64(id))
	}
	out = append(out, states...)
	if fault == FaultTruncated {
		out = out[:len(out)/2]
	}
	return out
}
