package target

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// exclusive is the flag to open a block device, unless it is in use.
const exclusive = os.O_EXCL

// TryReadAt implements TryReader: it reads what is in the page cache.
func (f *File) TryReadAt(p []byte, off int64) (done bool, err error) {
	if f.noTry.Load() {
		return false, nil
	}
	conn, err := f.f.SyscallConn()
	if err != nil {
		return true, err
	}
	var n int
	var failed error
	if err := conn.Control(func(fd uintptr) { n, failed = unix.Preadv2(int(fd), [][]byte{p}, off, unix.RWF_NOWAIT) }); err != nil {
		return true, err
	}
	if errors.Is(failed, syscall.EOPNOTSUPP) || errors.Is(failed, syscall.ENOSYS) {
		f.noTry.Store(true)
	}
	return failed == nil && n == len(p), nil // otherwise ReadAt reads all of it, or has the error
}

// Discard implements Discarder.
func (f *File) Discard(off, n int64) error {
	return f.allocate(&f.noPunch, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Zero implements Zeroer. The error wraps errors.ErrUnsupported if the file system cannot do so.
func (f *File) Zero(off, n int64) error {
	return f.allocate(&f.noZero, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// allocate calls fallocate, unless unsupported is set, and sets it.
func (f *File) allocate(unsupported *atomic.Bool, mode uint32, off, n int64) error {
	if unsupported.Load() {
		return errors.ErrUnsupported
	}
	conn, err := f.f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) {
		for {
			if failed = unix.Fallocate(int(fd), mode, off, n); failed != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	if errors.Is(failed, syscall.EOPNOTSUPP) || errors.Is(failed, syscall.ENOSYS) {
		unsupported.Store(true)
		return errors.ErrUnsupported
	}
	return failed
}
