package blob

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// isRefusal reports whether err is one of the two ways to refuse a file.
func isRefusal(err error) bool {
	var bad *CorruptError
	var newer *NewerError
	return errors.As(err, &bad) || errors.As(err, &newer)
}

// FuzzHeader makes the checksum right, so that what comes behind it is tried.
func FuzzHeader(f *testing.F) {
	for _, c := range damageCases(f) {
		n := binary.LittleEndian.Uint32(c.file[16:])
		f.Add(c.file[headBytes:headBytes+n], uint32(1), uint32(0))
	}
	f.Add([]byte(`{"layers":[1],"hidden_size":1048576,"dtype":"fp32","chunk_bytes":1}`), uint32(1), uint32(0))
	f.Fuzz(func(t *testing.T, js []byte, version, features uint32) {
		b := AppendHead(nil, magicHead, js)
		binary.LittleEndian.PutUint32(b[8:], version)
		binary.LittleEndian.PutUint32(b[12:], features)
		sum := crc32.Update(crc32.ChecksumIEEE(b[:28]), crc32.IEEETable, js)
		binary.LittleEndian.PutUint32(b[28:], sum)
		got, err := ReadHead("x", bytes.NewReader(b), int64(len(b)), magicHead)
		if err != nil {
			if !isRefusal(err) || version == 1 && features == 0 && len(js) <= maxJSON {
				t.Errorf("refused: %v", err)
			}
			return
		}
		if !bytes.Equal(got, js) {
			t.Error("header JSON differs")
		}
		m, err := parseMeta("x", got)
		if err != nil {
			if !isRefusal(err) {
				t.Error(err)
			}
			return
		}
		if l := newLayout(m); l.blockRows < 1 || l.blockRows*l.rowBytes > maxChunk {
			t.Errorf("layout %+v of %+v", l, m)
		}
	})
}

// FuzzFooter takes any bytes for the tables between a header and a trailer.
func FuzzFooter(f *testing.F) {
	for _, c := range damageCases(f) {
		end := c.file[len(c.file)-trailerBytes:]
		foot := binary.LittleEndian.Uint64(end)
		f.Add(c.file[foot:len(c.file)-trailerBytes], uint16(3), uint16(binary.LittleEndian.Uint32(end[20:])), uint32(foot))
	}
	m := testMeta("raw", "bf16")
	m.ChunkBytes, m.Hidden = 2048, 32
	f.Fuzz(func(t *testing.T, foot []byte, entries, chunks uint16, at uint32) {
		rest := len(foot) - int(entries)*entryBytes - int(chunks)*chunkBytes
		if rest < 0 {
			return
		}
		tr := trailer{footer: uint64(at), length: uint64(len(foot)), entries: uint32(entries), chunks: uint32(chunks), reasons: uint32(rest)}
		ft, err := parseFooter("x", m, foot, tr, headBytes)
		if err != nil {
			return
		}
		// What was accepted says the same when it is written again.
		var b []byte
		for i := range ft.entries {
			b = ft.entries[i].append(b)
		}
		for i := range ft.chunks {
			b = ft.chunks[i].append(b)
		}
		for i := range ft.entries {
			b = append(b, ft.entries[i].reason...)
		}
		if !bytes.Equal(b, foot) {
			t.Error("footer written again differs")
		}
	})
}

// FuzzOpen changes a whole file and makes its checksums right again.
func FuzzOpen(f *testing.F) {
	for _, c := range damageCases(f) {
		f.Add(c.file, uint(0), byte(0), true)
		f.Add(c.file, uint(len(c.file)-trailerBytes-20), byte(8), true)
	}
	f.Fuzz(func(t *testing.T, file []byte, at uint, v byte, seal bool) {
		file = bytes.Clone(file)
		if len(file) > 0 {
			file[at%uint(len(file))] ^= v
		}
		if seal {
			resealHead(file)
			resealFooter(file)
		}
		r, err := newReader("x", bytes.NewReader(file), int64(len(file)))
		if err != nil {
			if !isRefusal(err) {
				t.Errorf("%v", err)
			}
			return
		}
		if _, err := r.Verify(context.Background(), func(Damage) {}); err != nil {
			t.Error(err)
		}
		for i := range min(r.Entries(), 8) {
			readAll(t, r, i)
		}
	})
}

// readAll reads an entry; every failure must say that it is damage.
func readAll(t *testing.T, r *Reader, i int) {
	check := func(err error) {
		if err != nil && !isRefusal(err) && !errors.Is(err, ErrAbsent) {
			t.Errorf("entry %d: %v", i, err)
		}
	}
	_, err := r.IDs(i)
	check(err)
	_, err = r.Mask(i)
	check(err)
	_, err = r.EntryLosses(i)
	check(err)
	for l := range min(len(r.meta.Layers), 4) {
		_, err := r.LayerRows(i, l)
		check(err)
		n := min(r.LayerLen(i, l), 100)
		if n > 0 {
			check(r.Layer(make([]byte, n*r.lay.rowBytes), i, l, 0, n))
		}
	}
}

func resealHead(b []byte) {
	if len(b) < headBytes {
		return
	}
	copy(b, magicHead)
	n := min(int(binary.LittleEndian.Uint32(b[16:])), len(b)-headBytes)
	binary.LittleEndian.PutUint32(b[16:], uint32(n))
	sum := crc32.Update(crc32.ChecksumIEEE(b[:28]), crc32.IEEETable, b[headBytes:headBytes+n])
	binary.LittleEndian.PutUint32(b[28:], sum)
}
