package run

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// treePattern names the directories that describe fills.
const treePattern = "softrnic-run*"

// newTree makes a directory for describe. As long as this process has it, it is locked: another one removes those that are not, which
// are of processes that were killed.
func newTree() (dir string, remove func(), err error) {
	removeLeft()
	for {
		if dir, err = os.MkdirTemp("", treePattern); err != nil {
			return "", nil, err
		}
		f, err := lockTree(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // somebody has taken it for one that was left, and removes it
		}
		// A program that gives up its privileges still reads it, where a library shows it. There is nothing secret in it.
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", nil, errors.Join(err, f.Close())
		}
		return dir, func() { // without a lock where the file system has none, and nobody removes the directory
			_ = os.RemoveAll(dir)
			_ = f.Close()
		}, nil
	}
}

// lockTree locks a directory. The error is EWOULDBLOCK or os.ErrNotExist if another process has it locked, or has removed it.
func lockTree(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	of, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Lstat(dir); err == nil && !os.SameFile(of, there) {
			err = os.ErrNotExist
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeLeft removes the directories of this user's processes that were killed.
func removeLeft() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), treePattern))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			continue
		}
		if f, err := lockTree(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = f.Close()
		}
	}
}
