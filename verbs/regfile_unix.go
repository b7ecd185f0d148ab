//go:build unix

package verbs

import (
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RegFile maps length bytes of a file, and registers them as RegMapping does. offset must be a
// multiple of the page size. Writes change the file, and need AccessLocalWrite and a file that is
// open for writing. Close unmaps the file. f may be closed as soon as RegFile returns.
func (pd *PD) RegFile(f *os.File, offset int64, length int, access Access) (*MR, error) {
	const op = "register file"
	switch page := os.Getpagesize(); {
	case f == nil:
		return nil, Errorf(ErrInvalid, op, "the file is nil")
	case offset < 0 || offset%int64(page) != 0:
		return nil, Errorf(ErrInvalid, op, "offset %d is not a multiple of the page size of %d", offset, page)
	case length <= 0 || int64(length) > math.MaxInt64-offset:
		return nil, Errorf(ErrInvalid, op, "length %d is not positive, or exceeds 63 bits with offset %d", length, offset)
	}
	prot := syscall.PROT_READ
	if access&AccessLocalWrite != 0 {
		prot |= syscall.PROT_WRITE
	}
	b, err := syscall.Mmap(int(f.Fd()), offset, length, prot, syscall.MAP_SHARED)
	if err != nil {
		return nil, &Error{Op: op, Detail: f.Name() + ": " + err.Error(), Err: err}
	}
	file := &mapping{unmap: func() error { return wrapNonNil("close MR", syscall.Munmap(b)) }}
	mr, err := pd.register(op, mrFile, file, b, addressOf(b, access), access)
	if err != nil {
		_ = syscall.Munmap(b)
		return nil, err
	}
	return mr, nil
}

// syncMapping writes a part of a mapped file, which is not empty, to the file's storage.
func syncMapping(b []byte) error {
	before := int(uintptr(unsafe.Pointer(&b[0])) % uintptr(os.Getpagesize())) // bytes since the start of the page
	pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&b[0]), -before)), before+len(b))
	return unix.Msync(pages, unix.MS_SYNC)
}
