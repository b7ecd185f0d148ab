package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/namespace"
)

// addTo adds the entries of the directory d of files to the kernel's. A kernel directory accepts no
// new entries. So that of files takes its place, in whose file system the other entries are the old
// ones.
func addTo(files, d string) (err error) {
	dir, ours := "/"+d, filepath.Join(files, d)
	old, err := os.MkdirTemp(files, "old")
	if err != nil {
		return err
	}
	if err := unix.Mount(dir, old, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", dir, err)
	}
	// Nothing else keeps the kernel's entries visible below the old directory.
	defer func() { err = errors.Join(err, unix.Unmount(old, unix.MNT_DETACH), os.Remove(old)) }()
	if err := unix.Mount(ours, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", ours, dir, err)
	}
	return mirrorEntries(old, d)
}

// mirrorEntries mirrors the entries of old in a directory, except those that it has already.
func mirrorEntries(old, dir string) error {
	entries, err := os.ReadDir(old)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		err := mirror(filepath.Join(old, e.Name()), "/"+name, e.Type())
		if errors.Is(err, os.ErrExist) {
			err = nil
			if namespace.Merges(name) {
				err = mirrorEntries(filepath.Join(old, e.Name()), name)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mirror creates to as a mirror of from, which is of a type. The error is os.ErrExist if to exists.
func mirror(from, to string, of fs.FileMode) error {
	switch {
	case of&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case of.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		// An os.File of each of a hundred devices would be offered to the runtime's poller first.
		fd, err := unix.Open(to, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return &fs.PathError{Op: "create", Path: to, Err: err}
		}
		_ = unix.Close(fd)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}
