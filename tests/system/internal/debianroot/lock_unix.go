//go:build unix

package debianroot

import (
	"errors"
	"os"
	"syscall"
)

// Ways to lock a file or directory.
const (
	shared    = syscall.LOCK_SH
	exclusive = syscall.LOCK_EX
	atOnce    = syscall.LOCK_NB // does not wait
)

var errLocked = errors.New("another process has locked it")

// lock locks a file or directory until it is closed, here and in the processes that inherit it.
func lock(f *os.File, how int) error {
	for {
		switch err := syscall.Flock(int(f.Fd()), how); err {
		case nil:
			return nil
		case syscall.EINTR:
		case syscall.EWOULDBLOCK:
			return &os.PathError{Op: "lock", Path: f.Name(), Err: errLocked}
		default:
			return &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}
