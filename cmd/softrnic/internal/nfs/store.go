package nfs

import (
	"io"
	"io/fs"
	"time"
)

// store is a tree of files that is exported. Names are relative to its root and have no "..". Its
// methods are those of os.Root, except that none follows a symbolic link in the last component of a
// name, and have its errors. They may be called by several goroutines.
type store interface {
	// Lstat returns information whose Sys is a *file.FileInfo of go-nfs.
	Lstat(name string) (fs.FileInfo, error)
	// ReadDir returns the entries of a directory, in no particular order.
	ReadDir(name string) ([]fs.FileInfo, error)
	// Open opens a regular file.
	Open(name string, write bool) (storeFile, error)
	// Create creates a regular file, or fails with fs.ErrExist.
	Create(name string, perm fs.FileMode) error
	Mkdir(name string, perm fs.FileMode) error
	Remove(name string) error
	Rename(from, to string) error
	Link(from, to string) error
	Symlink(target, name string) error
	Readlink(name string) (string, error)
	Chmod(name string, mode fs.FileMode) error
	Lchown(name string, uid, gid int) error
	Chtimes(name string, atime, mtime time.Time) error
	// Space returns the size and the free space of the file system that has the tree.
	Space() (space, error)
	// Identity returns the identity of the file that Lstat or ReadDir has returned, with its name.
	Identity(name string, info fs.FileInfo) identity
	// Sync brings a file or a directory to stable storage, with its attributes and its entries.
	Sync(name string) error
	Close() error
}

// storeFile is an open file.
type storeFile interface {
	io.ReaderAt
	io.WriterAt
	Truncate(size int64) error
	// Sync brings the file to stable storage. Its error may be that of earlier writes, and may be
	// reported once only.
	Sync() error
	Stat() (fs.FileInfo, error)
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

// The name of the root in a store.
const rootName = "."
