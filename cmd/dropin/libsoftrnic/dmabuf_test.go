//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs"
)

// TestRegDmabufErrors: the errno for a descriptor or a range that is no dma-buf's.
func TestRegDmabufErrors(t *testing.T) {
	u := newUser(t, roce)
	page := cU64(os.Getpagesize())
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	null := cInt(file.Fd())
	for _, c := range []struct {
		name         string
		offset, iova cU64
		length       cSize
		fd           cInt
		want         syscall.Errno
	}{
		{"no descriptor", 0, 0, cSize(page), -1, syscall.EBADF},
		{"no descriptor and no length", 0, 0, 0, -1, syscall.EBADF},
		{"another position in the page", 0, 8, 64, -1, syscall.EINVAL},
		{"the same position", 8, 5*page + 8, 64, -1, syscall.EBADF},
		{"another file", 0, 0, cSize(page), null, syscall.EINVAL},
		{"no length", 0, 0, 0, null, syscall.EINVAL},
		{"beyond 63 bits", 1 << 63, 0, cSize(page), null, syscall.EINVAL},
	} {
		var h, lkey, rkey cU32
		fails(t, c.name, srRegDmabufMR(u.pd, c.offset, c.length, c.iova, c.fd, cU32(verbs.AccessLocalWrite), &h, &lkey, &rkey), c.want)
	}
}

// newDmabuf makes a dma-buf of memory of the processor, and returns another mapping of its memory.
// It skips the test if the kernel has no udmabuf.
func newDmabuf(t *testing.T, pages int) (fd int, mem []byte) {
	t.Helper()
	device, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("this machine makes no dma-bufs: %v", err)
	}
	defer device.Close()
	size := pages * os.Getpagesize()
	memfd, err := unix.MemfdCreate("dma-buf", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	if err := unix.Ftruncate(memfd, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(memfd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	create := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{uint32(memfd), 1, 0, uint64(size)}
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), 0x40187542, uintptr(unsafe.Pointer(&create))) // UDMABUF_CREATE
	if errno != 0 {
		t.Skipf("this machine makes no dma-bufs: %v", errno)
	}
	mem, err = unix.Mmap(memfd, 0, size, readWrite, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return int(r), mem
}

// TestRegDmabuf writes to a dma-buf whose exporter allows a mapping. The program has closed its
// descriptor.
func TestRegDmabuf(t *testing.T) {
	u := newUser(t, roce)
	page := os.Getpagesize()
	fd, mem := newDmabuf(t, 4)
	const iova = 0x5000_0000_0000
	var h, lkey, rkey cU32
	fails(t, "beyond the end", srRegDmabufMR(u.pd, cU64(page), cSize(4*page), iova, cInt(fd), cU32(allAccess), &h, &lkey, &rkey),
		syscall.EINVAL)
	check(t, srRegDmabufMR(u.pd, cU64(page), cSize(2*page), iova, cInt(fd), cU32(allAccess), &h, &lkey, &rkey))
	_ = unix.Close(fd)
	a, _ := u.pair()
	r := u.register([]byte("12345678"))
	sge := r.sge(0, 8)
	wr := cSendWR{opcode: cU32(verbs.RDMAWrite), send_flags: cU32(verbs.SendSignaled), sg_list: &sge, num_sge: 1,
		remote_addr: iova + 16, word1: cU64(rkey)}
	err, _ := send(a, &wr, 0)
	check(t, err)
	if wc := u.poll(u.cq); wc.status != 0 {
		t.Fatalf("status %d", wc.status)
	}
	if got := string(mem[page+16 : page+24]); got != "12345678" {
		t.Errorf("the buffer has %q", got)
	}
	check(t, srDeregMR(h))
}
