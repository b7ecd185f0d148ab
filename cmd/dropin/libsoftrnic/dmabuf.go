//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "cuda.h"
#include "softrnic.h"
*/
import "C"

import (
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs"
)

// dmabuf is a mapped dma-buf: a verbs.Backend. Its exporter is told of every access.
type dmabuf struct {
	fd      int // the program closes its own after the registration
	mapping []byte
	b       []byte // the region's part of it
}

// Flags of DMA_BUF_IOCTL_SYNC (<linux/dma-buf.h>).
const (
	dmabufSync  = 0x40086200 // _IOW('b', 0, __u64)
	dmabufRead  = 1 << 0
	dmabufWrite = 1 << 1
	dmabufEnd   = 1 << 2
)

// dmabufFlags are arguments of DMA_BUF_IOCTL_SYNC, which only reads them. A variable of sync would
// be allocated for each access.
var dmabufFlags = [...]uint64{dmabufRead: dmabufRead, dmabufWrite: dmabufWrite,
	dmabufRead | dmabufEnd: dmabufRead | dmabufEnd, dmabufWrite | dmabufEnd: dmabufWrite | dmabufEnd}

// mapDmabuf maps a part of a dma-buf. As with NVIDIA's cards, the error is EINVAL for a range
// outside the buffer.
func mapDmabuf(fd int, offset, length uint64, write bool) (*dmabuf, error) {
	const op = "register dma-buf"
	page := uint64(os.Getpagesize())
	skip := offset % page
	if length == 0 || length > math.MaxInt-page || offset > math.MaxInt64-length {
		return nil, verbs.Errorf(syscall.EINVAL, op, "offset %d and length %d", offset, length)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, verbs.Errorf(err, op, "descriptor %d", fd)
	}
	d := &dmabuf{fd: own}
	if size, err := unix.Seek(own, 0, unix.SEEK_END); err == nil && uint64(size) < offset+length {
		_ = unix.Close(own)
		return nil, verbs.Errorf(syscall.EINVAL, op, "offset %d and length %d exceed the buffer of %d bytes", offset, length, size)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	d.mapping, err = unix.Mmap(own, int64(offset-skip), int(skip+length), prot, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(own)
		stacks.log.Load().Warn("a dma-buf cannot be registered: its exporter allows no mapping, and its address is not "+
			"memory of a GPU that CUDA knows", "error", err)
		return nil, verbs.Errorf(syscall.EOPNOTSUPP, op, "its exporter allows no mapping: %v", err)
	}
	d.b = d.mapping[skip : skip+length]
	return d, nil
}

func (d *dmabuf) sync(flags uint64) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(d.fd), dmabufSync, uintptr(unsafe.Pointer(&dmabufFlags[flags])))
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return errno
		}
	}
}

// ReadAt implements verbs.Backend.
func (d *dmabuf) ReadAt(p []byte, off int64) (int, error) { return d.copy(p, d.b[off:], dmabufRead) }

// WriteAt implements verbs.Backend.
func (d *dmabuf) WriteAt(p []byte, off int64) (int, error) {
	return d.copy(d.b[off:][:len(p)], p, dmabufWrite)
}

func (d *dmabuf) copy(to, from []byte, kind uint64) (int, error) {
	if err := d.sync(kind); err != nil {
		return 0, err
	}
	ok := guardedCopy(to, from)
	if err := d.sync(kind | dmabufEnd); err != nil {
		return 0, err
	}
	if !ok {
		return 0, syscall.EFAULT
	}
	return len(to), nil
}

// guardedCopy returns false if the memory of the buffer faults.
func guardedCopy(to, from []byte) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, to, from)
	copy(to, from)
	return true
}

func (d *dmabuf) release() {
	_ = unix.Munmap(d.mapping)
	_ = unix.Close(d.fd)
}

// srRegDmabufMR registers a part of a dma-buf. Programs with memory of a GPU pass its address as
// the IOVA. The memory is then accessed by that, because the driver of the GPU allows no mapping.
//
//export srRegDmabufMR
func srRegDmabufMR(p C.uint32_t, offset C.uint64_t, length C.size_t, iova C.uint64_t, fd C.int, access C.uint32_t,
	h, lkey, rkey *C.uint32_t) C.int {
	const op = "register dma-buf"
	return with(&pds, p, func(pd *pd) error {
		page := C.uint64_t(os.Getpagesize())
		if offset%page != iova%page {
			return verbs.Errorf(syscall.EINVAL, op, "offset %#x and IOVA %#x have different positions in a page", offset, iova)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return verbs.Errorf(err, op, "descriptor %d", fd)
		}
		if C.cuda_dmabuf(fd) == 0 { // also if the memory is a GPU's, as with NVIDIA's cards
			return verbs.Errorf(syscall.EINVAL, op, "descriptor %d is not a dma-buf", fd)
		}
		gpu, err := gpuAt(op, uint64(iova), uint64(length))
		if err != nil {
			return err
		}
		var b backing = gpu
		if gpu == nil {
			write := verbs.Access(access)&verbs.AccessLocalWrite != 0
			if b, err = mapDmabuf(int(fd), uint64(offset), uint64(length), write); err != nil {
				return err
			}
		}
		mr, err := registerBacking(pd, b, length, uint64(iova), access)
		if err != nil {
			return err
		}
		*h, *lkey, *rkey = C.uint32_t(regions.Add(mr)), C.uint32_t(mr.LKey()), C.uint32_t(mr.RKey())
		return nil
	})
}
