package nfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"runtime"
	"syscall"
	"time"

	"github.com/willscott/go-nfs/file"
)

// directory is a directory as a store. All accesses go through an os.Root, so that no symbolic link
// leads out of the directory.
type directory struct {
	*os.Root
	top    *os.File // the directory, for Space and Identity
	device uint64   // of the file system of top
}

func openDirectory(name string) (*directory, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	top, err := root.Open(rootName)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &directory{Root: root, top: top, device: deviceOf(int(top.Fd()))}, nil
}

func (d *directory) Close() error {
	return errors.Join(d.top.Close(), d.Root.Close())
}

// fileInfo is information about a file, with the fields that go-nfs needs.
type fileInfo struct {
	fs.FileInfo
	sys *file.FileInfo
}

func (i fileInfo) Sys() any { return i.sys }

// Mode has the bits of Unix for set-user-ID, set-group-ID and sticky too, because go-nfs sends the
// mode as it is.
func (i fileInfo) Mode() fs.FileMode {
	mode := i.FileInfo.Mode()
	for bit, unix := range map[fs.FileMode]fs.FileMode{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			mode |= unix
		}
	}
	return mode
}

func withSys(info fs.FileInfo, name string) fs.FileInfo {
	sys := file.GetInfo(info)
	if sys == nil { // the system has no inode numbers
		sys = &file.FileInfo{Nlink: 1, Fileid: nameHash(name)}
	}
	return fileInfo{info, sys}
}

// nameHash returns a number for a name (FNV-1a, 64 bits).
func nameHash(name string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(path.Clean(name)) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func (d *directory) Lstat(name string) (fs.FileInfo, error) {
	info, err := d.Root.Lstat(name)
	if err != nil {
		return nil, err
	}
	return withSys(info, name), nil
}

func (d *directory) ReadDir(name string) ([]fs.FileInfo, error) {
	f, err := d.Root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	infos, err := f.Readdir(-1)
	for i := range infos {
		infos[i] = withSys(infos[i], path.Join(name, infos[i].Name()))
	}
	return infos, err
}

// regular returns an error unless the file is a regular one.
func (d *directory) regular(name string) (fs.FileInfo, error) {
	info, err := d.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EINVAL}
	}
	return info, nil
}

func (d *directory) Open(name string, write bool) (storeFile, error) {
	if _, err := d.regular(name); err != nil {
		return nil, err
	}
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := d.Root.OpenFile(name, flag|openFileFlag, 0)
	if write && errors.Is(err, fs.ErrPermission) {
		f, err = d.Root.OpenFile(name, os.O_WRONLY|openFileFlag, 0)
	}
	if err != nil {
		return nil, err // not f, which would be an interface that is not nil
	}
	return f, nil
}

func (d *directory) Create(name string, perm fs.FileMode) error {
	f, err := d.Root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	return f.Close()
}

// Sync is fsync for what can be opened. A symbolic link, a FIFO, and a file whose mode allows
// nothing to this user, cannot, nor what another client has renamed meanwhile: then it syncs all of
// the file system.
func (d *directory) Sync(name string) error {
	info, err := d.Lstat(name)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return d.syncAround(name)
	}
	if info.IsDir() && !syncsDirectories {
		return nil
	}
	mode := os.O_RDONLY
	if runtime.GOOS == "windows" { // FlushFileBuffers demands the right to write
		mode = os.O_RDWR
	}
	f, err := d.Root.OpenFile(name, mode|openFileFlag, 0)
	if errors.Is(err, fs.ErrPermission) && !info.IsDir() {
		f, err = d.Root.OpenFile(name, os.O_WRONLY|openFileFlag, 0)
	}
	if err != nil {
		return d.syncAround(name)
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncAround syncs the file system of the directory of a name, or that of the export.
func (d *directory) syncAround(name string) error {
	f, err := d.Root.Open(path.Dir(name))
	if err != nil {
		return syncFileSystem(d.top)
	}
	return errors.Join(syncFileSystem(f), f.Close())
}

func (d *directory) Chmod(name string, mode fs.FileMode) error {
	info, err := d.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // Linux has no mode of symbolic links
	}
	return d.Root.Chmod(name, mode)
}

func (d *directory) Chtimes(name string, atime, mtime time.Time) error {
	info, err := d.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil // os.Root can only set those of its target
	}
	return d.Root.Chtimes(name, atime, mtime)
}
