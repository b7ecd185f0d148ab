package verbs

import (
	"bufio"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// TestInMaps: parsing /proc/self/maps, for kernels before 6.11, gives the same results as the
// ioctl.
func TestInMaps(t *testing.T) {
	const maps = "00001000-00003000 rw-p 00000000 00:00 0\n" +
		"00003000-00004000 r--p 00000000 fd:00 12   /bin/a b\n" +
		"00004000-00005000 ---p 00000000 00:00 0\n" +
		"00006000-00007000 rw-s 00000000 00:00 0    /dev/shm/x (deleted)\n"
	for _, c := range []struct {
		from, end   uint64
		read, write bool
	}{
		{0x1000, 0x3000, true, true}, {0x1fff, 0x2001, true, true}, {0xfff, 0x1001, false, false}, {0x2fff, 0x3001, true, false},
		{0x3000, 0x4000, true, false}, {0x3fff, 0x4001, false, false}, {0x4fff, 0x5001, false, false}, {0x6000, 0x7000, true, true},
		{0x6fff, 0x7001, false, false}, {0x8000, 0x8001, false, false}, {0x5000, 0x5001, false, false},
	} {
		for write, want := range map[bool]bool{false: c.read, true: c.write} {
			if got := inMaps(bufio.NewScanner(strings.NewReader(maps)), c.from, c.end, write); got != want {
				t.Errorf("[%#x, %#x), write %v: %v", c.from, c.end, write, got)
			}
		}
	}
	buf, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(buf)
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	defer f.Close()
	from := uint64(uintptr(unsafe.Pointer(&buf[0])))
	if !inMaps(bufio.NewScanner(f), from, from+uint64(len(buf)), false) || mapped(buf, true) || !mapped(buf, false) {
		t.Error("wrong result for a read-only mapping")
	}
}

func BenchmarkMapped(b *testing.B) {
	buf, err := syscall.Mmap(-1, 0, 1<<30, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		b.Fatal(err)
	}
	defer syscall.Munmap(buf)
	for b.Loop() {
		mapped(buf, true)
	}
}
