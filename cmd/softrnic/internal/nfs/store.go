package nfs

import (
	"io"
	"syscall"
	"time"
)

// store is a tree of files that is exported. Its methods, and those of its nodes, may be called by
// several goroutines.
type store interface {
	// Root returns the directory that is exported.
	Root() (inode, error)
	// Find returns the file that a handle refers to, or syscall.ESTALE.
	Find(handle []byte) (inode, error)
	// Identify returns the identity in a handle, without looking for the file.
	Identify(handle []byte) (identity, bool)
	// Space returns the size and the free space of the file system that has the tree.
	Space() (space, error)
	Close() error
}

// inode is a reference to a file, which others may rename or remove meanwhile: it remains the
// same file. No method follows a symbolic link. Names have no separators, and are not "." or "..".
type inode interface {
	Attributes() (attributes, error)
	// Handle returns the file's NFS handle, which remains valid when the file is renamed.
	Handle() []byte
	// Access reports whether the server's user has rights: of accessRead and so on.
	Access(rights uint32) bool
	// Change sets attributes, except the size.
	Change(c *sattr) error
	// Open opens a regular file.
	Open(write bool) (storeFile, error)
	Readlink() (string, error)
	// Sync brings a file or a directory to stable storage, with its attributes and its entries.
	Sync() error
	Close() error

	// Those of directories. Parent of the root is the root.
	Parent() (inode, error)
	Lookup(name string) (inode, error)
	// Stat returns the attributes and the handle of an entry, faster than Lookup.
	Stat(name string) (a attributes, handle []byte, err error)
	// List calls each with the directory's entries, in no particular order.
	List(each func(name string, number uint64)) error
	// Create creates a regular file, also open for writing, or fails with fs.ErrExist. The mode is
	// never wider than that of c.
	Create(name string, c *sattr) (inode, storeFile, error)
	Mkdir(name string, c *sattr) (inode, error)
	Symlink(target, name string) (inode, error)
	// Mknod creates a FIFO or a socket.
	Mknod(name string, k kind, c *sattr) (inode, error)
	// Link makes a further name for a file of the same store.
	Link(file inode, name string) error
	Remove(name string, directory bool) error
	Rename(from string, to inode, name string) error
}

// Rights of Access, as in access(2).
const accessRead, accessWrite, accessExecute = 4, 2, 1

// storeFile is an open file.
type storeFile interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	// Sync brings the file to stable storage. Its error may be that of earlier writes, and may be
	// reported once only.
	Sync() error
	Attributes() (attributes, error)
	Close() error
}

// space has the figures of a file system: bytes, and files.
type space struct{ total, free, available, files, freeFiles uint64 }

// identity distinguishes a file from all others in the store, including earlier ones with its
// number.
type identity struct {
	number     uint64 // the inode
	generation uint64
}

// kind is a type of files (ftype3, RFC 1813 §2.6).
type kind uint32

const (
	kindRegular kind = 1 + iota
	kindDirectory
	kindBlock
	kindCharacter
	kindSymlink
	kindSocket
	kindFIFO
)

// attributes are those of a file (fattr3, RFC 1813 §2.6).
type attributes struct {
	identity
	kind                kind
	mode                uint32 // the twelve bits of Unix
	links, uid, gid     uint32
	size, used          uint64
	major, minor        uint32
	atime, mtime, ctime time.Time
	// changes is one more after each operation that changes the file, except reads, which change only
	// atime. It is 0 if the store does not count.
	changes uint64
}

// modeBits are those of Unix: permissions, set-user-ID, set-group-ID, sticky.
const modeBits = 0o7777

// sattr has attributes to set (sattr3, RFC 1813 §2.6). Those that are nil remain.
type sattr struct {
	mode, uid, gid *uint32
	size           *uint64
	atime, mtime   *time.Time
}

// regular returns an error unless a file of this kind can be opened.
func (k kind) regular() error {
	switch k {
	case kindRegular:
		return nil
	case kindDirectory:
		return syscall.EISDIR
	}
	return syscall.EINVAL
}

// owner returns the owners that a change sets, as chown(2) takes them: -1 leaves one as it is. Also
// owners that the file has already take away bits of the mode, and change its ctime.
func (c *sattr) owner() (uid, gid int, given bool) {
	uid, gid = -1, -1
	if c.uid != nil {
		uid = int(*c.uid)
	}
	if c.gid != nil {
		gid = int(*c.gid)
	}
	return uid, gid, c.uid != nil || c.gid != nil
}

// times returns the times that a change sets for a file that has other ones.
func (c *sattr) times(a attributes) (atime, mtime time.Time, changed bool) {
	atime, mtime = a.atime, a.mtime
	if c.atime != nil {
		atime = *c.atime
	}
	if c.mtime != nil {
		mtime = *c.mtime
	}
	return atime, mtime, c.atime != nil || c.mtime != nil
}
