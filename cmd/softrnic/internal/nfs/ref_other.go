//go:build !linux

package nfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"syscall"
	"time"
)

// ref refers to a file by its name below the directory that is exported. All accesses go through an
// os.Root, so that no symbolic link leads out of it.
type ref struct {
	root *os.Root
	path string
	top  bool // close ends the root
}

func checkRefs() error { return nil }

func openRef(name string) (ref, error) {
	root, err := os.OpenRoot(name)
	return ref{root, ".", true}, err
}

// statTop returns the attributes of the directory that is exported.
func (r ref) statTop() (a attributes, device uint64, err error) {
	a, err = r.attributes()
	return a, 0, err
}

func (r ref) close() error {
	if r.top {
		return r.root.Close()
	}
	return nil
}

func (r ref) again() (ref, error) { return r.at("."), nil }

func (r ref) at(name string) ref { return ref{r.root, path.Join(r.path, name), false} }

func (r ref) lookup(name string, _ uint64) (ref, attributes, error) {
	child := r.at(name)
	a, err := child.attributes()
	return child, a, err
}

func (r ref) statAt(name string, _ uint64) (attributes, error) { return r.at(name).attributes() }

func (r ref) attributes() (attributes, error) {
	info, err := r.root.Lstat(r.path)
	if err != nil {
		return attributes{}, err
	}
	return attributesOf(info, r.path), nil
}

// attributesOf returns the attributes that all systems have, and those of this one.
func attributesOf(info fs.FileInfo, name string) attributes {
	mode := info.Mode()
	a := attributes{
		identity: identity{number: hash(name)}, mode: uint32(mode.Perm()), links: 1, size: uint64(info.Size()), used: uint64(info.Size()),
		atime: info.ModTime(), mtime: info.ModTime(), ctime: info.ModTime(), kind: kindRegular,
	}
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			a.mode |= unix
		}
	}
	for bit, k := range map[fs.FileMode]kind{fs.ModeDir: kindDirectory, fs.ModeSymlink: kindSymlink, fs.ModeNamedPipe: kindFIFO,
		fs.ModeSocket: kindSocket, fs.ModeDevice: kindBlock} {
		if mode&bit != 0 {
			a.kind = k
		}
	}
	if mode&fs.ModeCharDevice != 0 {
		a.kind = kindCharacter
	}
	setSys(&a, info)
	return a
}

// access looks at the mode only: the server's user is the owner of most files.
func (r ref) access(rights uint32) bool {
	a, err := r.attributes()
	return err == nil && (runtime.GOOS == "windows" && rights != accessWrite || (a.mode>>6|a.mode>>3|a.mode)&rights == rights)
}

// openFlag keeps the opening of a FIFO from waiting for a writer, if one has replaced the file.
const openFlag = syscall.O_NONBLOCK

func (r ref) open(write bool) (storeFile, error) {
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := r.root.OpenFile(r.path, flag|openFlag, 0)
	if write && errors.Is(err, fs.ErrPermission) {
		f, err = r.root.OpenFile(r.path, os.O_WRONLY|openFlag, 0)
	}
	if err != nil {
		return nil, err // not f, which would be an interface that is not nil
	}
	return otherFile{f, r.path}, nil
}

// otherFile is an open file.
type otherFile struct {
	*os.File
	path string
}

func (f otherFile) Attributes() (attributes, error) {
	info, err := f.Stat()
	if err != nil {
		return attributes{}, err
	}
	return attributesOf(info, f.path), nil
}

func (r ref) readlink() (string, error) { return r.root.Readlink(r.path) }

func (r ref) list(each func(name string, number uint64, may bool)) error {
	f, err := r.root.Open(r.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		infos, err := f.Readdir(1024)
		for _, info := range infos {
			each(info.Name(), attributesOf(info, path.Join(r.path, info.Name())).number, info.IsDir())
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (r ref) create(name string, mode uint32) (storeFile, error) {
	child := r.at(name)
	f, err := r.root.OpenFile(child.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, fs.FileMode(mode))
	if err != nil {
		return nil, err
	}
	return otherFile{f, child.path}, nil
}

func (r ref) mkdir(name string, mode uint32) error {
	return r.root.Mkdir(r.at(name).path, fs.FileMode(mode))
}

func (r ref) symlink(target, name string) error { return r.root.Symlink(target, r.at(name).path) }

func (r ref) mknod(string, kind, uint32) error { return syscall.EPERM }

func (r ref) link(file ref, name string) error { return r.root.Link(file.path, r.at(name).path) }

func (r ref) remove(name string, directory bool) error {
	a, err := r.at(name).attributes()
	switch {
	case err != nil:
		return err
	case directory && a.kind != kindDirectory:
		return syscall.ENOTDIR
	case !directory && a.kind == kindDirectory:
		return syscall.EISDIR
	}
	return r.root.Remove(r.at(name).path)
}

func (r ref) rename(from string, to ref, name string) error {
	return r.root.Rename(r.at(from).path, to.at(name).path)
}

func (r ref) chmod(mode uint32) error {
	m := fs.FileMode(mode) & fs.ModePerm
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&unix != 0 {
			m |= bit
		}
	}
	return r.root.Chmod(r.path, m)
}

func (r ref) chown(uid, gid int) error {
	if runtime.GOOS == "windows" && max(uid, gid) == 0 { // those that files seem to have there
		return nil
	}
	return r.root.Lchown(r.path, uid, gid)
}

func (r ref) chtimes(atime, mtime time.Time) error {
	if a, err := r.attributes(); err == nil && a.kind == kindSymlink {
		return nil // os.Root can only set those of its target
	}
	return r.root.Chtimes(r.path, atime, mtime)
}

// errUnopened says that a file cannot be opened for a sync.
var errUnopened = errors.New("it cannot be opened")

func (r ref) sync(k kind) error {
	mode := os.O_RDONLY
	switch {
	case k == kindDirectory && runtime.GOOS == "windows":
		return nil // NTFS has a journal for it
	case k != kindRegular && k != kindDirectory:
		return errUnopened
	case runtime.GOOS == "windows": // FlushFileBuffers demands the right to write
		mode = os.O_RDWR
	}
	f, err := r.root.OpenFile(r.path, mode|openFlag, 0)
	if errors.Is(err, fs.ErrPermission) && k == kindRegular {
		f, err = r.root.OpenFile(r.path, os.O_WRONLY|openFlag, 0)
	}
	if err != nil {
		return errors.Join(errUnopened, err)
	}
	return errors.Join(f.Sync(), f.Close())
}

// syncAll does nothing: only Linux has a call that reports errors.
func (r ref) syncAll() error { return nil }

// space is not known.
func (r ref) space() (space, error) { return space{}, errors.ErrUnsupported }
