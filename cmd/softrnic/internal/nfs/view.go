package nfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5"
	gonfs "github.com/willscott/go-nfs"
)

// view is the export as go-nfs sees it, during one call at a time. It is go-nfs's Handler, and the
// file system of it.
//
// go-nfs does not tell its file system what a call wants, nor its client which error has occurred.
// So the view has some arguments of the call, and remembers the last error.
type view struct {
	*export

	call    call
	err     error       // the last error of the store
	made    string      // the name of the file that Create has returned
	opened  []*openFile // that are not closed
	changed []string    // names of what must be on stable storage before the reply
}

// call has arguments of a call that go-nfs does not pass on.
type call struct {
	procedure uint32
	stable    bool    // of WRITE: the data must be on the disk before the reply
	guarded   bool    // of CREATE: the file must not exist
	mode      *uint32 // of CREATE and MKDIR, or nil
}

var (
	_ gonfs.Handler    = (*view)(nil)
	_ billy.Filesystem = (*view)(nil)
	_ billy.Change     = (*view)(nil)
	_ billy.Capable    = (*view)(nil)
)

// begin prepares the view for a call.
func (v *view) begin(c call) { v.call, v.err, v.made, v.changed = c, nil, "", nil }

// end closes the files that go-nfs has left open: it does so after most errors.
func (v *view) end() {
	for len(v.opened) > 0 {
		_ = v.opened[0].Close()
	}
}

// done notes the result of a change of the store, which also changed what has the names.
func (v *view) done(err error, names ...string) error {
	if err != nil {
		return v.failed(err)
	}
	for _, name := range names {
		if !slices.Contains(v.changed, name) {
			v.changed = append(v.changed, name)
		}
	}
	return nil
}

// settle brings all changes to stable storage.
func (v *view) settle() error {
	for _, name := range v.changed {
		if err := v.files.sync(name); err != nil {
			return stored(err)
		}
	}
	return nil
}

// failed remembers an error of the store, and returns it.
func (v *view) failed(err error) error {
	if err != nil {
		v.err = err
	}
	return err
}

// refuse returns a new error for a name.
func (v *view) refuse(op, name string, errno syscall.Errno) error {
	return v.failed(&fs.PathError{Op: op, Path: name, Err: errno})
}

// invalid is the name that Join returns for names that do not belong to a directory. No store has
// it.
const invalid = "\x00"

// validName reports whether a client's name may be that of an entry of a directory.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// Join implements billy.Basic. Elements come from clients, and must not lead to other directories.
func (v *view) Join(elements ...string) string {
	if len(elements) == 0 {
		return rootName
	}
	if len(elements) == 1 && v.made != "" && elements[0] == v.made { // the name of a file that Create has returned
		return v.made
	}
	for _, e := range elements {
		if !validName(e) {
			return invalid
		}
	}
	return path.Join(elements...)
}

// check returns an error for a name of Join's that does not belong to a directory.
func (v *view) check(op, name string) error {
	if name == invalid {
		return v.refuse(op, name, syscall.EINVAL)
	}
	return nil
}

// Capabilities implements billy.Capable. ACCESS gives no rights to change what is read-only.
func (v *view) Capabilities() billy.Capability {
	if v.readOnly {
		return billy.ReadCapability | billy.SeekCapability
	}
	return billy.AllCapabilities
}

// Create implements billy.Basic. It does not truncate a file that exists: NFS does not wish that
// (RFC 1813 §3.3.8).
func (v *view) Create(name string) (billy.File, error) {
	if err := v.check("create", name); err != nil {
		return nil, err
	}
	perm := fs.FileMode(0o666)
	if v.call.mode != nil {
		perm = 0o600 // go-nfs sets the mode afterwards: it must not be wider until then
	}
	switch err := v.files.create(name, perm); {
	case err == nil:
		_ = v.done(nil, name, path.Dir(name))
	case !errors.Is(err, fs.ErrExist) || v.call.guarded:
		return nil, v.failed(err)
	}
	v.made = name
	return &openFile{view: v, name: name}, nil
}

func (v *view) Open(name string) (billy.File, error) { return v.OpenFile(name, os.O_RDONLY, 0) }

func (v *view) OpenFile(name string, flag int, _ fs.FileMode) (billy.File, error) {
	if err := v.check("open", name); err != nil {
		return nil, err
	}
	kept, err := v.files.get(name, flag&(os.O_WRONLY|os.O_RDWR) != 0)
	if err != nil {
		return nil, v.failed(err)
	}
	f := &openFile{view: v, f: kept, name: name}
	v.opened = append(v.opened, f)
	return f, nil
}

// Stat is Lstat: the client follows symbolic links itself.
func (v *view) Stat(name string) (fs.FileInfo, error) { return v.Lstat(name) }

func (v *view) Lstat(name string) (fs.FileInfo, error) {
	if err := v.check("lstat", name); err != nil {
		return nil, err
	}
	info, err := v.store.Lstat(name)
	return info, v.failed(err)
}

func (v *view) MkdirAll(name string, _ fs.FileMode) error {
	if err := v.check("mkdir", name); err != nil {
		return err
	}
	perm := fs.FileMode(0o777)
	if v.call.mode != nil {
		perm = fs.FileMode(*v.call.mode) & 0o777
	}
	return v.done(v.store.Mkdir(name, perm), name, path.Dir(name))
}

func (v *view) Rename(from, to string) error {
	if err := errors.Join(v.check("rename", from), v.check("rename", to)); err != nil {
		return err
	}
	replaced, _ := v.store.Lstat(to)
	var id identity
	if replaced != nil {
		id = v.store.Identity(to, replaced)
	}
	if err := v.store.Rename(from, to); err != nil {
		return v.failed(err)
	}
	if replaced != nil {
		v.files.forget(id, replaced)
		v.handles.removed(id)
	}
	v.handles.renamed(to)
	return v.done(nil, path.Dir(from), path.Dir(to))
}

func (v *view) Remove(name string) error {
	if err := v.check("remove", name); err != nil {
		return err
	}
	info, err := v.store.Lstat(name)
	if err != nil {
		return v.failed(err)
	}
	switch {
	case v.call.procedure == procRemove && info.IsDir():
		return v.refuse("remove", name, syscall.EISDIR)
	case v.call.procedure == procRmdir && !info.IsDir():
		return v.refuse("remove", name, syscall.ENOTDIR)
	}
	id := v.store.Identity(name, info)
	if err := v.store.Remove(name); err != nil {
		return v.failed(err)
	}
	v.files.forget(id, info)
	v.handles.removed(id)
	return v.done(nil, path.Dir(name))
}

func (v *view) Symlink(target, name string) error {
	if err := v.check("symlink", name); err != nil {
		return err
	}
	return v.done(v.store.Symlink(target, name), path.Dir(name))
}

// link makes a name for the file that has another one.
func (v *view) link(from, name string) error {
	if err := v.check("link", name); err != nil {
		return err
	}
	return v.done(v.store.Link(from, name), name, path.Dir(name))
}

func (v *view) Readlink(name string) (string, error) {
	if err := v.check("readlink", name); err != nil {
		return "", err
	}
	target, err := v.store.Readlink(name)
	return target, v.failed(err)
}

func (v *view) Chmod(name string, mode fs.FileMode) error {
	if err := v.check("chmod", name); err != nil {
		return err
	}
	return v.done(v.store.Chmod(name, mode), name)
}

func (v *view) Lchown(name string, uid, gid int) error {
	if err := v.check("lchown", name); err != nil {
		return err
	}
	return v.done(v.store.Lchown(name, uid, gid), name)
}

func (v *view) Chown(name string, uid, gid int) error { return v.Lchown(name, uid, gid) }

func (v *view) Chtimes(name string, atime, mtime time.Time) error {
	if err := v.check("chtimes", name); err != nil {
		return err
	}
	return v.done(v.store.Chtimes(name, atime, mtime), name)
}

// go-nfs uses no temporary files, and does not change its root. The export lists directories.
func (v *view) ReadDir(string) ([]fs.FileInfo, error)       { return nil, billy.ErrNotSupported }
func (v *view) TempFile(string, string) (billy.File, error) { return nil, billy.ErrNotSupported }
func (v *view) Chroot(string) (billy.Filesystem, error)     { return nil, billy.ErrNotSupported }
func (v *view) Root() string                                { return "/" }

// Mount implements gonfs.Handler. The export's path is "/", or its directory.
func (v *view) Mount(_ context.Context, _ net.Conn, r gonfs.MountRequest) (gonfs.MountStatus, billy.Filesystem, []gonfs.AuthFlavor) {
	if p := path.Clean("/" + string(r.Dirpath)); p != "/" && p != v.path {
		return gonfs.MountStatusErrNoEnt, v, nil
	}
	return gonfs.MountStatusOk, v, []gonfs.AuthFlavor{gonfs.AuthFlavorUnix, gonfs.AuthFlavorNull}
}

// Change implements gonfs.Handler.
func (v *view) Change(billy.Filesystem) billy.Change { return v }

// FSStat implements gonfs.Handler.
func (v *view) FSStat(_ context.Context, _ billy.Filesystem, s *gonfs.FSStat) error {
	sp, err := v.store.Space()
	if err == nil {
		s.TotalSize, s.FreeSize, s.AvailableSize = sp.total, sp.free, sp.available
		s.TotalFiles, s.FreeFiles, s.AvailableFiles = sp.files, sp.freeFiles, sp.freeFiles
	}
	return nil // unknown sizes are large
}

// ToHandle implements gonfs.Handler.
func (v *view) ToHandle(_ billy.Filesystem, elements []string) []byte {
	if name := v.Join(elements...); name != invalid {
		if b := v.handles.of(name); b != nil {
			return b
		}
	}
	return make([]byte, 4) // of no file
}

// FromHandle implements gonfs.Handler.
func (v *view) FromHandle(b []byte) (billy.Filesystem, []string, error) {
	name, ok := v.handles.find(b)
	switch {
	case !ok:
		return nil, nil, v.refuse("find", "handle", syscall.ESTALE)
	case name == rootName:
		return v, nil, nil
	}
	return v, strings.Split(name, "/"), nil
}

// InvalidateHandle implements gonfs.Handler. Remove and Rename know better than go-nfs which
// handles become invalid: that of a renamed file does not.
func (v *view) InvalidateHandle(billy.Filesystem, []byte) error { return nil }

// HandleLimit implements gonfs.Handler.
func (v *view) HandleLimit() int { return maxNodes }

// openFile is a file that go-nfs has opened.
type openFile struct {
	view *view
	f    *keptFile // nil: just created
	name string
	off  int64
}

func (f *openFile) Name() string { return f.name }

func (f *openFile) Seek(off int64, whence int) (int64, error) {
	if whence != io.SeekStart || off < 0 {
		return 0, f.view.refuse("seek", f.name, syscall.EINVAL)
	}
	f.off = off
	return off, nil
}

func (f *openFile) Read(b []byte) (int, error) {
	n, err := f.ReadAt(b, f.off)
	f.off += int64(n)
	return n, err
}

func (f *openFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(b, off)
	if err != nil && !errors.Is(err, io.EOF) {
		f.view.err = err
	}
	return n, err
}

func (f *openFile) Write(b []byte) (int, error) {
	n, err := f.f.WriteAt(b, f.off)
	f.off += int64(n)
	if err == nil && f.view.call.stable {
		err = stored(f.f.Sync())
	}
	return n, f.view.failed(err)
}

func (f *openFile) Truncate(size int64) error {
	return f.view.done(f.f.Truncate(size), f.name)
}

func (f *openFile) Close() error {
	i := slices.Index(f.view.opened, f)
	if i < 0 {
		return nil
	}
	f.view.opened = slices.Delete(f.view.opened, i, i+1)
	return f.view.failed(f.f.Close())
}

func (f *openFile) Lock() error   { return billy.ErrNotSupported }
func (f *openFile) Unlock() error { return billy.ErrNotSupported }
