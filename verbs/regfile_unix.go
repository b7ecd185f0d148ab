//go:build unix

package verbs

import (
	"math"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RegFile maps length bytes of a file from offset on, which must be a multiple of the page size, and registers them as
// RegMapping does. Writing needs AccessLocalWrite and a file that is open for writing; what is written is the file's.
// Dereg takes the mapping away; f may be closed at once.
func (pd *PD) RegFile(f *os.File, offset int64, length int, access Access) (*MR, error) {
	const op = "register file"
	if f == nil || offset < 0 || offset%int64(os.Getpagesize()) != 0 || length <= 0 || int64(length) > math.MaxInt64-offset {
		return nil, Errorf(ErrInvalid, op, "offset %d is no multiple of the page size of %d, or length %d not positive",
			offset, os.Getpagesize(), length)
	}
	prot := syscall.PROT_READ
	if access&AccessLocalWrite != 0 {
		prot |= syscall.PROT_WRITE
	}
	b, err := syscall.Mmap(int(f.Fd()), offset, length, prot, syscall.MAP_SHARED)
	if err != nil {
		return nil, &Error{Op: op, Detail: f.Name() + ": " + err.Error(), Err: err}
	}
	mr, err := pd.register(op, mrFile, b, addressOf(b, access), access)
	if err != nil {
		_ = syscall.Munmap(b)
		return nil, err
	}
	mr.file = &mapping{unmap: func() error { return wrapNonNil("deregister MR", syscall.Munmap(b)) }}
	return mr, nil
}

// Persist returns once b, a part of a region of RegFile, is in the file and the file where it outlives a loss of power,
// which takes the time of the file's device. It is for providers, which carry FLUSH out, and need hold no lock: Dereg waits
// for it. ErrDestroyed once the region is deregistered.
func (mr *MR) Persist(b []byte) error {
	const op = "persist"
	if mr.file == nil {
		return Errorf(ErrInvalid, op, "lkey %#x is not of RegFile", mr.LKey())
	}
	mr.file.mu.RLock()
	defer mr.file.mu.RUnlock()
	switch {
	case mr.file.gone:
		return Errorf(ErrDestroyed, op, "lkey %#x is deregistered", mr.LKey())
	case len(b) == 0:
		return nil
	}
	before := int(uintptr(unsafe.Pointer(&b[0])) % uintptr(os.Getpagesize()))
	pages := unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&b[0]), -before)), before+len(b))
	return wrapNonNil(op, unix.Msync(pages, unix.MS_SYNC))
}

func wrapNonNil(op string, err error) error {
	if err == nil {
		return nil
	}
	return wrap(op, err)
}
