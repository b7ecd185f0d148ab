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

// inMemory returns a directory in memory, where creating a thousand files takes a tenth of the time
// that it takes on a disk. It returns that of temporary files if there is none, or if the user says
// where they are to be.
func inMemory() string {
	const shm = "/dev/shm"
	var s unix.Statfs_t
	if os.Getenv("TMPDIR") == "" && unix.Statfs(shm, &s) == nil && s.Type == unix.TMPFS_MAGIC && unix.Access(shm, unix.W_OK|unix.X_OK) == nil {
		return shm
	}
	return os.TempDir()
}

// newTree creates a directory for a tree in another and locks it while this process exists. Other
// processes remove directories without a lock, which killed processes have left.
func newTree(parent string) (dir string, remove func(), err error) {
	removeLeft(parent)
	for {
		if dir, err = os.MkdirTemp(parent, treePattern); err != nil {
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
func removeLeft(parent string) {
	dirs, err := filepath.Glob(filepath.Join(parent, treePattern))
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
