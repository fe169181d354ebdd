package blob

import (
	"bytes"
	"context"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A blob that was written leaves next to nothing in the page cache.
func TestPageCacheIsLeftFree(t *testing.T) {
	path := blobPath(t)
	var st unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	if st.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is a tmpfs, which is nothing but page cache")
	}
	m := testMeta("raw", "bf16")
	m.Hidden, m.ChunkBytes = 4096, 256<<10
	const rows = 64
	w, err := Create(path, m, WriterOptions{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte{1, 2, 3, 4}, rows*len(m.Layers)*m.RowBytes()/4)
	for range 40 { // 60 MiB
		if err := w.Begin(Entry{Rows: rows}, make([]uint32, rows), make([]byte, rows)); err != nil {
			t.Fatal(err)
		}
		if err := w.Rows(context.Background(), data, rows); err != nil {
			t.Fatal(err)
		}
		if err := w.End(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := w.Commit(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if w.page.started == 0 {
		t.Error("nothing was sent to the disk before the end")
	}
	if n := resident(t, path, info.Bytes); n > info.Bytes/10 {
		t.Errorf("%d of %d bytes are still cached", n, info.Bytes)
	}
}

// resident returns how many bytes of a file the page cache holds.
func resident(t *testing.T, path string, size int64) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	page := int64(os.Getpagesize())
	vec := make([]byte, (size+page-1)/page)
	if err := mincore(b, vec); err != nil {
		t.Fatal(err)
	}
	n := int64(0)
	for _, v := range vec {
		n += int64(v&1) * page
	}
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

func mincore(b, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
