//go:build unix

package userdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// MaxPath is the number of bytes that the path of a unix socket may have.
const MaxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Make makes a directory of mode 0700 and the one that it is in, if need be, and checks that both are this user's, and nobody
// else's to write.
func Make(dir string) error {
	const toWrite, toUse = 0o022, 0o077 // by others than the owner
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	if err := check(parent, toWrite); err != nil { // before anything is made where it may lead
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return check(dir, toUse)
}

// anothers tells whether a directory that is there is another user's, where this one cannot make what it needs. Root can.
func anothers(dir string) bool {
	if os.Geteuid() == 0 {
		return false
	}
	info, err := os.Stat(dir)
	if err != nil {
		return errors.Is(err, fs.ErrPermission)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) != os.Geteuid()
}

// check refuses what is no directory of this user's, or gives others one of the permissions.
func check(d string, permissions fs.FileMode) error {
	info, err := os.Lstat(d)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	own := ok && info.IsDir() && int(st.Uid) == os.Geteuid()
	if open := info.Mode().Perm()&permissions != 0; !own || open {
		return fmt.Errorf("%s is %v of user %d: it must be a directory of this user, %d, that is nobody else's to write: give another",
			d, info.Mode(), st.Uid, os.Geteuid())
	}
	return nil
}
