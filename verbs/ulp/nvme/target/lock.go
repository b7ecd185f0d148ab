//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package target

import (
	"errors"
	"os"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// lock locks a file until it is closed. Of those who only read, several may have a lock.
func lock(f *os.File, write bool) error {
	how := syscall.LOCK_SH | syscall.LOCK_NB
	if write {
		how = syscall.LOCK_EX | syscall.LOCK_NB
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) {
		for {
			if failed = syscall.Flock(int(fd), how); failed != syscall.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	switch {
	case errors.Is(failed, syscall.EWOULDBLOCK):
		return verbs.Errorf(verbs.ErrBusy, "open "+f.Name(), "another target or program has locked it")
	case failed == nil, errors.Is(failed, errors.ErrUnsupported), errors.Is(failed, syscall.ENOLCK): // a file system without locks
		return nil
	}
	return &os.PathError{Op: "lock", Path: f.Name(), Err: failed}
}
