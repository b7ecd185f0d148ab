//go:build unix

package verbs

import (
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// regFile is RegMREx for a region of a file.
func (pd *PD) regFile(attr *MRInitAttr) (*MR, error) {
	f, offset, length := attr.File, attr.FileOffset, attr.FileLength
	switch page := os.Getpagesize(); {
	case offset < 0 || offset%int64(page) != 0:
		return nil, Errorf(ErrInvalid, opRegister, "FileOffset %d is not a multiple of the page size of %d", offset, page)
	case length <= 0 || int64(length) > math.MaxInt64-offset:
		return nil, Errorf(ErrInvalid, opRegister, "FileLength %d is not positive, or exceeds 63 bits with FileOffset %d", length, offset)
	}
	prot := syscall.PROT_READ
	if attr.Access&AccessLocalWrite != 0 {
		prot |= syscall.PROT_WRITE
	}
	b, err := syscall.Mmap(int(f.Fd()), offset, length, prot, syscall.MAP_SHARED)
	if err != nil {
		return nil, &Error{Op: opRegister, Detail: f.Name() + ": " + err.Error(), Err: err}
	}
	file := &mapping{unmap: func() error { return wrapNonNil("close MR", syscall.Munmap(b)) }}
	mr, err := pd.register(opRegister, &MR{kind: mrFile, file: file}, b, attr.address(pd.dev, b), attr.Access)
	if err != nil {
		_ = syscall.Munmap(b)
		return nil, err
	}
	return mr, nil
}

// syncMapping writes a part of a mapped file, which is not empty, to the file's storage.
func syncMapping(b []byte) error {
	// Bytes since the start of the page.
	before := int(uintptr(unsafe.Pointer(&b[0])) % uintptr(os.Getpagesize()))
	pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&b[0]), -before)), before+len(b))
	return unix.Msync(pages, unix.MS_SYNC)
}
