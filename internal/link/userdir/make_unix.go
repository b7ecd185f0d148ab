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

// MaxPath is the longest path of a unix socket, in bytes.
const MaxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Make creates a directory of mode 0700, and its parent if needed. It fails unless both belong to
// this user, only this user can write to the parent, and only this user can use the directory.
func Make(dir string) error {
	const toWrite, toUse = 0o022, 0o077 // permissions of others
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	if err := check(parent, toWrite); err != nil { // before anything is created below it
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return check(dir, toUse)
}

// ownedByOther reports whether an existing directory belongs to another user, so that this user
// cannot create files in it. For root it returns false.
func ownedByOther(dir string) bool {
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

// check returns an error unless d is a directory of this user that gives others none of the
// permissions.
func check(d string, permissions fs.FileMode) error {
	info, err := os.Lstat(d)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	own := ok && info.IsDir() && int(st.Uid) == os.Geteuid()
	if open := info.Mode().Perm()&permissions != 0; !own || open {
		return fmt.Errorf("%s is %v of user %d: want a directory of user %d that others cannot write to; use another",
			d, info.Mode(), st.Uid, os.Geteuid())
	}
	return nil
}
