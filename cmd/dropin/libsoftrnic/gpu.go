//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "cuda.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// gpuMemory is a region in a GPU's memory: a verbs.Backend.
type gpuMemory struct {
	m    C.struct_cuda_memory
	addr uint64
}

// gpuAt returns the memory of a GPU at an address of the program. It is nil for other memory.
func gpuAt(op string, addr, length uint64) (*gpuMemory, error) {
	g := &gpuMemory{addr: addr}
	switch C.cuda_find(C.uint64_t(addr), C.size_t(length), &g.m) {
	case 0:
		return nil, nil
	case 1:
		return g, nil
	}
	return nil, verbs.Errorf(syscall.EFAULT, op, "length %d at %#x: not all of it is memory of the GPU", length, addr)
}

// ReadAt implements verbs.Backend.
func (g *gpuMemory) ReadAt(p []byte, off int64) (int, error) { return g.copy(p, off, 0) }

// WriteAt implements verbs.Backend.
func (g *gpuMemory) WriteAt(p []byte, off int64) (int, error) { return g.copy(p, off, 1) }

func (g *gpuMemory) copy(p []byte, off int64, toGPU C.int) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	at := g.addr + uint64(off)
	err := C.cuda_copy(&g.m, C.uint64_t(at), unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), toGPU)
	if err != 0 {
		name := C.GoString(C.cuda_error(err))
		stacks.log.Load().Warn("a copy from or to the GPU has failed", "address", fmt.Sprintf("%#x", at), "bytes", len(p), "error", name)
		return 0, fmt.Errorf("CUDA: %s", name)
	}
	return len(p), nil
}

// AllocStaging implements verbs.Stager.
func (g *gpuMemory) AllocStaging(n int) []byte {
	var size C.size_t
	p := C.cuda_alloc_staging(C.size_t(n), &size)
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), int(size))[:n]
}

// FreeStaging implements verbs.Stager.
func (g *gpuMemory) FreeStaging(b []byte) {
	C.cuda_free_staging(unsafe.Pointer(unsafe.SliceData(b)))
}

func (g *gpuMemory) release() { C.cuda_release(&g.m) }

// backing is a verbs.Backend that has something to release when its region is deregistered.
type backing interface {
	verbs.Backend
	release()
}

var backings sync.Map // *verbs.MR → backing

// registerBacking registers a region with a backend, which it releases after an error.
func registerBacking(pd *pd, b backing, length C.size_t, iova uint64, access C.uint32_t) (*verbs.MR, error) {
	if verbs.Access(access)&verbs.AccessZeroBased != 0 {
		iova = 0
	}
	mr, err := pd.RegMREx(&verbs.MRInitAttr{Backend: b, BackendLength: int(length), IOVA: &iova, Access: verbs.Access(access)})
	if err != nil {
		b.release()
		return nil, err
	}
	backings.Store(mr, b)
	return mr, nil
}

// closeRegion deregisters a region, and releases its backend.
func closeRegion(mr *verbs.MR) error {
	if err := mr.Close(); err != nil {
		return err
	}
	if b, ok := backings.LoadAndDelete(mr); ok {
		b.(backing).release()
	}
	return nil
}
