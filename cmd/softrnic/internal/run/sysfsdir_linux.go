package run

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// treePattern is the name pattern of newTree's directories.
const treePattern = "softrnic-run*"

// newTree creates a directory for a tree and locks it while this process exists. Other processes
// remove directories without a lock, which killed processes have left.
func newTree() (dir string, remove func(), err error) {
	removeLeft()
	for {
		if dir, err = os.MkdirTemp("", treePattern); err != nil {
			return "", nil, err
		}
		f, err := lockTree(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue // another process has removed it before it was locked
		}
		// A program that drops its privileges still reads it through the preloaded library. It has
		// no secrets.
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", nil, errors.Join(err, f.Close())
		}
		return dir, func() { // if the file system has no locks, no process removes the directory
			_ = os.RemoveAll(dir)
			_ = f.Close()
		}, nil
	}
}

// lockTree locks a directory. The error is EWOULDBLOCK if another process has locked it, and
// os.ErrNotExist if one has removed it.
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

// removeLeft removes the directories of this user's killed processes.
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
