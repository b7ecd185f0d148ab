//go:build unix

package userdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest path of a unix socket, in bytes.
const MaxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// Permissions of others.
const toWrite, toUse = 0o022, 0o077

// Make creates a directory of mode 0700, and its parent if needed. It fails unless both belong to
// this user, only this user can write to the parent, and only this user can use the directory.
func Make(dir string) error {
	if err := makeIn(dir, 0o700); err != nil {
		return err
	}
	return check(dir, toUse)
}

// Check returns an error unless a directory exists and is as Make creates it.
func Check(dir string) error {
	if err := check(filepath.Dir(dir), toWrite); err != nil {
		return err
	}
	return check(dir, toUse)
}

// makeIn creates a directory of a mode, and its parent if needed, which only this user may change.
func makeIn(dir string, mode fs.FileMode) error {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, mode); err != nil {
		return err
	}
	if err := check(parent, toWrite); err != nil { // before anything is created below it
		return err
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// MakePublic creates a directory in which other users can find a socket, and its parent if needed.
// Only this user can write to them.
func MakePublic(dir string) error {
	if err := makeIn(dir, 0o755); err != nil {
		return err
	}
	if err := check(dir, toWrite); err != nil {
		return err
	}
	return errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)) // whatever the umask is
}

// Owner returns the user of a directory of MakePublic. It fails unless only that user can write to
// the directory and its parent, and only root, or this user, to the directory of the parent.
func Owner(dir string) (uid int, err error) {
	parent := filepath.Dir(dir)
	uid, err = ownerOf(parent)
	if err != nil {
		return 0, err
	}
	above, err := ownerOf(filepath.Dir(parent))
	if err != nil {
		return 0, err
	}
	own, err := ownerOf(dir)
	if err == nil && (own != uid || above != 0 && above != os.Geteuid()) {
		err = fmt.Errorf("%s is of user %d, in one of user %d, in one of user %d: want one of a service in one of root", dir, own, uid, above)
	}
	return uid, err
}

// ownerOf returns the user of a directory. It fails if others can write to it.
func ownerOf(dir string) (uid int, err error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&toWrite != 0 {
		return 0, fmt.Errorf("%s is %v: want a directory that others cannot write to", dir, info.Mode())
	}
	return int(st.Uid), nil
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

// taken reports whether something that is not this user's has the name of a directory.
func taken(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || int(st.Uid) != os.Geteuid()
}

// writable reports whether a directory is this user's and only this user can create files in it.
func writable(dir string) bool {
	return check(dir, toWrite) == nil && unix.Access(dir, unix.W_OK) == nil
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
