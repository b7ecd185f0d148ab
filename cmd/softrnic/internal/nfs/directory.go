package nfs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
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
	cache  files
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
	d.cache.clear()
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
	info, err := d.regular(name)
	if err != nil {
		return nil, err
	}
	id := d.Identity(name, info)
	if f := d.cache.get(id, write); f != nil {
		return f, nil
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
		return nil, err
	}
	return d.cache.add(id, write, f), nil
}

// Create leaves the new file open for a while: its client may write to it even if the file's mode
// does not allow that to others.
func (d *directory) Create(name string) error {
	f, err := d.Root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	info, err := d.Lstat(name)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return d.cache.add(d.Identity(name, info), true, f).Close()
}

func (d *directory) Remove(name string) error {
	info, err := d.Lstat(name)
	if err != nil {
		return err
	}
	if err := d.Root.Remove(name); err != nil {
		return err
	}
	d.cache.forget(d.Identity("", info).number)
	return nil
}

func (d *directory) Rename(from, to string) error {
	replaced, _ := d.Lstat(to)
	if err := d.Root.Rename(from, to); err != nil {
		return err
	}
	if replaced != nil {
		d.cache.forget(d.Identity("", replaced).number)
	}
	return nil
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

// files are open files that are kept for further accesses.
type files struct {
	mu   sync.Mutex
	open []*keptFile // the last used one is last
}

// maxKept is the number of files that are kept open.
const maxKept = 64

// keptFile is an open file in the cache. It is closed when it has left the cache and has no users.
type keptFile struct {
	*os.File
	cache *files
	id    identity
	write bool
	users int
	gone  bool // from the cache
}

// Close ends a use of the file.
func (f *keptFile) Close() error {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.users--
	f.closeUnused()
	return nil
}

func (f *keptFile) closeUnused() {
	if f.users == 0 && f.gone {
		_ = f.File.Close() // each write was checked, and synced as the client wished
	}
}

// get returns a kept file for another use, or nil.
func (c *files) get(id identity, write bool) *keptFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.open {
		if f.id == id && f.write == write {
			f.users++
			c.open = append(append(c.open[:i], c.open[i+1:]...), f)
			return f
		}
	}
	return nil
}

// add keeps an open file, and returns it for its first use.
func (c *files) add(id identity, write bool, open *os.File) *keptFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &keptFile{File: open, cache: c, id: id, write: write, users: 1}
	c.open = append(c.open, f)
	if len(c.open) > maxKept {
		c.drop(0)
	}
	return f
}

func (c *files) drop(i int) {
	f := c.open[i]
	c.open = append(c.open[:i], c.open[i+1:]...)
	f.gone = true
	f.closeUnused()
}

// forget drops the files of a number.
func (c *files) forget(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.open) - 1; i >= 0; i-- {
		if c.open[i].id.number == number {
			c.drop(i)
		}
	}
}

func (c *files) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.open) > 0 {
		c.drop(0)
	}
}
