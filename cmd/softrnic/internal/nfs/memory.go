package nfs

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/willscott/go-nfs/file"
)

// memory is a tree of files in memory as a store.
type memory struct {
	limit int64 // bytes

	mu   sync.RWMutex // protects all below, also of the nodes
	used int64
	next uint64 // number of the next node
	root *memoryNode
}

// memoryNode is a file, directory or symbolic link.
type memoryNode struct {
	m        *memory
	number   uint64
	mode     fs.FileMode
	links    uint32
	uid, gid uint32
	mtime    time.Time
	data     []byte // of a file, or a link's target
	entries  map[string]*memoryNode
}

// newMemory returns an empty tree that occupies at most limit bytes.
func newMemory(limit int64) *memory {
	m := &memory{limit: limit}
	m.root = m.node(fs.ModeDir | 0o777)
	return m
}

func (m *memory) node(mode fs.FileMode) *memoryNode {
	m.next++
	n := &memoryNode{m: m, number: m.next, mode: mode, links: 1, mtime: time.Now()}
	if mode.IsDir() {
		n.links, n.entries = 2, map[string]*memoryNode{}
	}
	return n
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// find returns the node of a name. mu is held.
func (m *memory) find(op, name string) (*memoryNode, error) {
	n := m.root
	if name == rootName {
		return n, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		if n.entries == nil {
			return nil, pathError(op, name, syscall.ENOTDIR)
		}
		if n = n.entries[part]; n == nil {
			return nil, pathError(op, name, syscall.ENOENT)
		}
	}
	return n, nil
}

// parent returns the directory of a name, and its last component. mu is held.
func (m *memory) parent(op, name string) (*memoryNode, string, error) {
	if name == rootName {
		return nil, "", pathError(op, name, syscall.EBUSY)
	}
	dir, err := m.find(op, path.Dir(name))
	if err == nil && dir.entries == nil {
		err = pathError(op, name, syscall.ENOTDIR)
	}
	return dir, path.Base(name), err
}

// insert makes a new node an entry of a directory. mu is held for writing.
func (m *memory) insert(op, name string, n *memoryNode) error {
	dir, base, err := m.parent(op, name)
	if err != nil {
		return err
	}
	if dir.entries[base] != nil {
		return pathError(op, name, syscall.EEXIST)
	}
	if err := m.grow(entryCost); err != nil {
		return pathError(op, name, err)
	}
	dir.put(base, n)
	return nil
}

// entryCost is the number of bytes that an entry of a directory counts beside the data: its node,
// up to 255 bytes of name here and in its handle, and the maps of both.
const entryCost = 1024

func (n *memoryNode) put(base string, child *memoryNode) {
	n.entries[strings.Clone(base)], n.mtime = child, time.Now() // without the rest of the path
	if child.mode.IsDir() {
		n.links++
	}
}

// drop removes an entry. The data of a file is freed with its last name: there are no open files.
func (n *memoryNode) drop(base string) {
	child := n.entries[base]
	delete(n.entries, base)
	n.mtime = time.Now()
	n.m.used -= entryCost
	switch {
	case child.mode.IsDir():
		n.links--
	case child.links == 1:
		n.m.used -= int64(cap(child.data))
		child.links, child.data = 0, nil
	default:
		child.links--
	}
}

// memoryInfo implements fs.FileInfo.
type memoryInfo struct {
	name  string
	mode  fs.FileMode
	size  int64
	mtime time.Time
	sys   *file.FileInfo
}

func (i memoryInfo) Name() string       { return i.name }
func (i memoryInfo) Size() int64        { return i.size }
func (i memoryInfo) Mode() fs.FileMode  { return i.mode }
func (i memoryInfo) ModTime() time.Time { return i.mtime }
func (i memoryInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memoryInfo) Sys() any           { return i.sys }

func (n *memoryNode) info(name string) fs.FileInfo {
	size := int64(len(n.data))
	if n.mode.IsDir() {
		size = 4096
	}
	return memoryInfo{name, n.mode, size, n.mtime, &file.FileInfo{Nlink: n.links, UID: n.uid, GID: n.gid, Fileid: n.number}}
}

func (m *memory) Lstat(name string) (fs.FileInfo, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find("lstat", name)
	if err != nil {
		return nil, err
	}
	return n.info(path.Base(name)), nil
}

func (m *memory) ReadDir(name string) (infos []fs.FileInfo, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find("readdir", name)
	if err != nil {
		return nil, err
	}
	if n.entries == nil {
		return nil, pathError("readdir", name, syscall.ENOTDIR)
	}
	for base, child := range n.entries {
		infos = append(infos, child.info(base))
	}
	return infos, nil
}

// Identity needs no generation: no number is used twice.
func (m *memory) Identity(_ string, info fs.FileInfo) identity {
	return identity{number: info.(memoryInfo).sys.Fileid}
}

func (m *memory) Open(name string, _ bool) (storeFile, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find("open", name)
	switch {
	case err != nil:
		return nil, err
	case n.mode.IsDir():
		return nil, pathError("open", name, syscall.EISDIR)
	case !n.mode.IsRegular():
		return nil, pathError("open", name, syscall.EINVAL)
	}
	return n, nil
}

func (m *memory) Create(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.insert("create", name, m.node(perm))
}

func (m *memory) Mkdir(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.insert("mkdir", name, m.node(fs.ModeDir|perm))
}

func (m *memory) Symlink(target, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.grow(int64(len(target))); err != nil {
		return pathError("symlink", name, err)
	}
	n := m.node(fs.ModeSymlink | 0o777)
	n.data = slices.Clip([]byte(target))
	err := m.insert("symlink", name, n)
	if err != nil {
		m.used -= int64(len(target))
	}
	return err
}

func (m *memory) Readlink(name string) (string, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find("readlink", name)
	if err != nil {
		return "", err
	}
	if n.mode&fs.ModeSymlink == 0 {
		return "", pathError("readlink", name, syscall.EINVAL)
	}
	return string(n.data), nil
}

func (m *memory) Link(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("link", from)
	if err != nil {
		return err
	}
	if n.mode.IsDir() {
		return pathError("link", from, syscall.EPERM)
	}
	if err := m.insert("link", to, n); err != nil {
		return err
	}
	n.links++
	return nil
}

func (m *memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.entries[base]
	switch {
	case n == nil:
		return pathError("remove", name, syscall.ENOENT)
	case len(n.entries) > 0:
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	dir.drop(base)
	return nil
}

func (m *memory) Rename(from, to string) error {
	const op = "rename"
	m.mu.Lock()
	defer m.mu.Unlock()
	fromDir, fromBase, err := m.parent(op, from)
	if err != nil {
		return err
	}
	toDir, toBase, err := m.parent(op, to)
	if err != nil {
		return err
	}
	n, old := fromDir.entries[fromBase], toDir.entries[toBase]
	switch {
	case n == nil:
		return pathError(op, from, syscall.ENOENT)
	case n == old:
		return nil
	case n.mode.IsDir() && strings.HasPrefix(to, from+"/"):
		return pathError(op, to, syscall.EINVAL)
	case old != nil && old.mode.IsDir() && !n.mode.IsDir():
		return pathError(op, to, syscall.EISDIR)
	case old != nil && !old.mode.IsDir() && n.mode.IsDir():
		return pathError(op, to, syscall.ENOTDIR)
	case old != nil && len(old.entries) > 0:
		return pathError(op, to, syscall.ENOTEMPTY)
	case old != nil:
		toDir.drop(toBase)
	}
	delete(fromDir.entries, fromBase)
	fromDir.mtime = time.Now()
	if n.mode.IsDir() {
		fromDir.links--
	}
	toDir.put(toBase, n)
	return nil
}

// change calls f with the node of a name, unless it is a symbolic link.
func (m *memory) change(op, name string, f func(*memoryNode)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(op, name)
	if err == nil && n.mode&fs.ModeSymlink == 0 {
		f(n)
	}
	return err
}

func (m *memory) Chmod(name string, mode fs.FileMode) error {
	return m.change("chmod", name, func(n *memoryNode) { n.mode = n.mode.Type() | mode.Perm() })
}

func (m *memory) Lchown(name string, uid, gid int) error {
	return m.change("lchown", name, func(n *memoryNode) { n.uid, n.gid = uint32(uid), uint32(gid) })
}

func (m *memory) Chtimes(name string, _, mtime time.Time) error {
	return m.change("chtimes", name, func(n *memoryNode) { n.mtime = mtime })
}

func (m *memory) Space() (space, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	free := uint64(m.limit - m.used)
	const files = 1 << 20
	return space{uint64(m.limit), free, free, files, files - min(m.next, files)}, nil
}

// Sync has nothing to do: the content ends with the process anyway, and then has another verifier.
func (m *memory) Sync(string) error { return nil }

func (m *memory) Close() error { return nil }

// grow accounts for n further bytes of data. mu is held for writing.
func (m *memory) grow(n int64) error {
	if n > m.limit-m.used {
		return syscall.ENOSPC
	}
	m.used += n
	return nil
}

// resize sets the length of the data. What counts is the memory that the data occupies: a file that
// grows has up to twice its length, where there is room for it, and a smaller one is moved. mu is
// held for writing.
func (n *memoryNode) resize(size int64) error {
	if n.links == 0 {
		return syscall.ESTALE
	}
	old, occupied := int64(len(n.data)), int64(cap(n.data))
	if size <= occupied && size >= occupied/2 {
		n.data = n.data[:size]
		clear(n.data[min(old, size):])
		return nil
	}
	room := size
	if size > old {
		room = max(size, 2*old)
	}
	if n.m.grow(room-occupied) != nil {
		room = size
		if err := n.m.grow(room - occupied); err != nil {
			return err
		}
	}
	moved := make([]byte, size, room)
	copy(moved, n.data)
	n.data = moved
	return nil
}

// ReadAt implements storeFile.
func (n *memoryNode) ReadAt(b []byte, off int64) (int, error) {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	if off >= int64(len(n.data)) {
		return 0, io.EOF
	}
	read := copy(b, n.data[off:])
	if read < len(b) {
		return read, io.EOF
	}
	return read, nil
}

// WriteAt implements storeFile.
func (n *memoryNode) WriteAt(b []byte, off int64) (int, error) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if off < 0 || off > n.m.limit {
		return 0, syscall.ENOSPC
	}
	if end := off + int64(len(b)); end > int64(len(n.data)) {
		if err := n.resize(end); err != nil {
			return 0, err
		}
	}
	n.mtime = time.Now()
	return copy(n.data[off:], b), nil
}

// Truncate implements storeFile.
func (n *memoryNode) Truncate(size int64) error {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	n.mtime = time.Now()
	return n.resize(size)
}

// Sync implements storeFile.
func (n *memoryNode) Sync() error { return nil }

// Stat implements storeFile.
func (n *memoryNode) Stat() (fs.FileInfo, error) {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	return n.info(""), nil
}

// Close implements storeFile.
func (n *memoryNode) Close() error { return nil }
