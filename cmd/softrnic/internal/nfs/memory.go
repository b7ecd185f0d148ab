package nfs

import (
	"encoding/binary"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/link/clock"
)

// memory is a tree of files in memory as a store.
type memory struct {
	limit  int64  // bytes
	export uint64 // in handles; another one after each start, as the content is
	clock  clock.Clock

	mu    sync.RWMutex // protects all below, also of the nodes
	used  int64
	next  uint64 // number of the next node
	op    uint64 // number of the operation that has the lock for writing
	root  *memoryNode
	nodes map[uint64]*memoryNode // by number: those that have a name
}

// memoryNode is a file of any kind. It is an inode and, if it is regular, a storeFile.
type memoryNode struct {
	m       *memory
	a       attributes   // without the size and the time of the last access
	atime   atomic.Int64 // in nanoseconds, as reading needs no exclusive lock
	op      uint64       // that was the last to change it
	data    []byte       // of a file, or a link's target
	parent  *memoryNode  // of a directory
	entries map[string]*memoryNode
}

// newMemory returns an empty tree that occupies at most limit bytes.
func newMemory(limit int64) *memory { return newMemoryAt(limit, clock.Clock{}) }

// newMemoryAt is newMemory with the times and random numbers of a clock.
func newMemoryAt(limit int64, c clock.Clock) *memory {
	var b [8]byte
	_, _ = io.ReadFull(c.Rand(), b[:]) // never fails
	m := &memory{limit: limit, export: binary.BigEndian.Uint64(b[:]), clock: c, nodes: map[uint64]*memoryNode{}}
	m.root = m.node(kindDirectory, 0o777, nil)
	m.root.parent = m.root
	m.nodes[m.root.a.number] = m.root
	return m
}

func (m *memory) node(k kind, mode uint32, c *sattr) *memoryNode {
	m.next++
	now := m.clock.Now()
	n := &memoryNode{m: m, a: attributes{identity: identity{number: m.next}, kind: k, mode: mode, links: 1, mtime: now, ctime: now,
		changes: 1}}
	n.atime.Store(now.UnixNano())
	if k == kindDirectory {
		n.a.links, n.entries = 2, map[string]*memoryNode{}
	}
	if c != nil {
		n.set(c)
	}
	return n
}

const memoryHandleLen = 16 // the export, and the number

func (m *memory) Root() (inode, error) { return m.root, nil }

func (m *memory) Find(handle []byte) (inode, error) {
	id, ok := m.Identify(handle)
	m.mu.RLock()
	defer m.mu.RUnlock()
	if n := m.nodes[id.number]; ok && n != nil {
		return n, nil
	}
	return nil, syscall.ESTALE
}

func (m *memory) Identify(handle []byte) (identity, bool) {
	if len(handle) != memoryHandleLen || binary.BigEndian.Uint64(handle) != m.export {
		return identity{}, false
	}
	return identity{number: binary.BigEndian.Uint64(handle[8:])}, true
}

func (n *memoryNode) Handle() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, memoryHandleLen), n.m.export)
	return binary.BigEndian.AppendUint64(b, n.a.number)
}

func (m *memory) Space() (space, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	free := uint64(m.limit - m.used)
	const files = 1 << 20
	return space{uint64(m.limit), free, free, files, files - min(uint64(len(m.nodes)), files)}, nil
}

func (m *memory) Close() error { return nil }

// entryCost is the number of bytes that an entry of a directory counts beside the data: its node,
// up to 255 bytes of name, and the maps.
const entryCost = 1024

// insert makes a node an entry of a directory. mu is held for writing.
func (n *memoryNode) insert(base string, child *memoryNode) error {
	switch {
	case n.entries == nil:
		return syscall.ENOTDIR
	case n.a.links == 0: // it was removed
		return syscall.ESTALE
	case n.entries[base] != nil:
		return syscall.EEXIST
	}
	if err := n.m.grow(entryCost + int64(cap(child.data))); err != nil {
		return err
	}
	n.put(base, child)
	n.m.nodes[child.a.number] = child
	return nil
}

func (n *memoryNode) put(base string, child *memoryNode) {
	n.entries[strings.Clone(base)] = child // without the rest of the call
	n.modified()
	if child.entries != nil {
		child.parent = n
		n.a.links++
	}
}

// lock begins an operation that may change files.
func (m *memory) lock() {
	m.mu.Lock()
	m.op++
}

// changed notes a change of a file's attributes. mu is held for writing.
func (n *memoryNode) changed() {
	n.a.ctime = n.m.clock.Now()
	if n.op != n.m.op {
		n.op = n.m.op
		n.a.changes++
	}
}

// modified notes a change of a file's data.
func (n *memoryNode) modified() {
	n.changed()
	n.a.mtime = n.a.ctime
}

// drop removes an entry. The data of a file is freed with its last name: there are no open files.
func (n *memoryNode) drop(base string) {
	child := n.entries[base]
	delete(n.entries, base)
	n.modified()
	n.m.used -= entryCost
	child.changed()
	if child.entries != nil {
		n.a.links--
		child.a.links = 0
	} else {
		child.a.links--
	}
	if child.a.links == 0 {
		n.m.used -= int64(cap(child.data))
		child.data = nil
		delete(n.m.nodes, child.a.number)
	}
}

func (n *memoryNode) Attributes() (attributes, error) {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	a := n.a
	a.atime = time.Unix(0, n.atime.Load())
	a.size, a.used = uint64(len(n.data)), uint64(cap(n.data))
	if n.entries != nil {
		a.size, a.used = 4096, 4096
	}
	return a, nil
}

// Access implements inode. The server's user has all rights, as root has with a directory.
func (n *memoryNode) Access(rights uint32) bool {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	return rights&accessExecute == 0 || n.entries != nil || n.a.mode&0o111 != 0
}

// Change implements inode.
func (n *memoryNode) Change(c *sattr) error {
	n.m.lock()
	defer n.m.mu.Unlock()
	n.set(c)
	return nil
}

// set sets attributes. mu is held for writing.
func (n *memoryNode) set(c *sattr) {
	if c.uid != nil {
		n.a.uid = *c.uid
	}
	if c.gid != nil {
		n.a.gid = *c.gid
	}
	if _, _, given := c.owner(); given && n.a.kind != kindDirectory { // as Linux does
		n.a.mode &^= 0o4000
		if n.a.mode&0o010 != 0 {
			n.a.mode &^= 0o2000
		}
	}
	if c.mode != nil && n.a.kind != kindSymlink { // Linux has no mode of symbolic links
		n.a.mode = *c.mode & modeBits
	}
	if c.atime != nil {
		n.atime.Store(c.atime.UnixNano())
	}
	if c.mtime != nil {
		n.a.mtime = *c.mtime
	}
	n.changed()
}

func (n *memoryNode) Open(bool) (storeFile, error) {
	if err := n.a.kind.regular(); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *memoryNode) Readlink() (string, error) {
	if n.a.kind != kindSymlink {
		return "", syscall.EINVAL
	}
	return string(n.data), nil // which does not change
}

// Sync has nothing to do: the content ends with the process anyway, and then has another verifier.
func (n *memoryNode) Sync() error { return nil }

// Close implements inode and storeFile.
func (n *memoryNode) Close() error { return nil }

func (n *memoryNode) Parent() (inode, error) {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	return n.parent, nil
}

func (n *memoryNode) Lookup(name string) (inode, error) {
	n.m.mu.RLock()
	defer n.m.mu.RUnlock()
	if n.entries == nil {
		return nil, syscall.ENOTDIR
	}
	child := n.entries[name]
	if child == nil {
		return nil, syscall.ENOENT
	}
	return child, nil
}

func (n *memoryNode) Stat(name string) (attributes, []byte, error) {
	child, err := n.Lookup(name)
	if err != nil {
		return attributes{}, nil, err
	}
	a, err := child.Attributes()
	return a, child.Handle(), err
}

// List implements inode. each may take its time: it is called without the lock.
func (n *memoryNode) List(each func(name string, number uint64)) error {
	n.m.mu.RLock()
	if n.entries == nil {
		n.m.mu.RUnlock()
		return syscall.ENOTDIR
	}
	type named struct {
		name   string
		number uint64
	}
	entries := make([]named, 0, len(n.entries))
	for name, child := range n.entries {
		entries = append(entries, named{name, child.a.number})
	}
	n.m.mu.RUnlock()
	for _, e := range entries {
		each(e.name, e.number)
	}
	return nil
}

// add makes a new file.
func (n *memoryNode) add(name string, k kind, mode uint32, c *sattr, data []byte) (*memoryNode, error) {
	n.m.lock()
	defer n.m.mu.Unlock()
	child := n.m.node(k, mode, c)
	child.data = data
	if n.a.mode&0o2000 != 0 { // set-group-ID: what is new has the directory's group
		if c == nil || c.gid == nil {
			child.a.gid = n.a.gid
		}
		if k == kindDirectory {
			child.a.mode |= 0o2000
		}
	}
	if err := n.insert(name, child); err != nil {
		return nil, err
	}
	return child, nil
}

func (n *memoryNode) Create(name string, c *sattr) (inode, storeFile, error) {
	child, err := n.add(name, kindRegular, 0o644, c, nil)
	if err != nil {
		return nil, nil, err
	}
	return child, child, nil
}

func (n *memoryNode) Mkdir(name string, c *sattr) (inode, error) {
	return asInode(n.add(name, kindDirectory, 0o755, c, nil))
}

func (n *memoryNode) Symlink(target, name string) (inode, error) {
	return asInode(n.add(name, kindSymlink, 0o777, nil, slices.Clip([]byte(target))))
}

func (n *memoryNode) Mknod(name string, k kind, c *sattr) (inode, error) {
	return asInode(n.add(name, k, 0o644, c, nil))
}

// asInode returns no node if there is an error, and not one that is a nil pointer.
func asInode[N inode](n N, err error) (inode, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (n *memoryNode) Link(file inode, name string) error {
	n.m.lock()
	defer n.m.mu.Unlock()
	child := file.(*memoryNode)
	switch {
	case child.entries != nil:
		return syscall.EPERM
	case child.a.links == 0:
		return syscall.ESTALE
	}
	if err := n.insert(name, child); err != nil {
		return err
	}
	n.m.used -= int64(cap(child.data)) // which counts once
	child.a.links++
	child.changed()
	return nil
}

func (n *memoryNode) Remove(name string, directory bool) error {
	n.m.lock()
	defer n.m.mu.Unlock()
	child := n.entries[name]
	switch {
	case n.entries == nil:
		return syscall.ENOTDIR
	case child == nil:
		return syscall.ENOENT
	case directory && child.entries == nil:
		return syscall.ENOTDIR
	case !directory && child.entries != nil:
		return syscall.EISDIR
	case len(child.entries) > 0:
		return syscall.ENOTEMPTY
	}
	n.drop(name)
	return nil
}

func (n *memoryNode) Rename(from string, to inode, name string) error {
	n.m.lock()
	defer n.m.mu.Unlock()
	dir := to.(*memoryNode)
	if n.entries == nil || dir.entries == nil {
		return syscall.ENOTDIR
	}
	child, old := n.entries[from], dir.entries[name]
	switch {
	case child == nil:
		return syscall.ENOENT
	case dir.a.links == 0:
		return syscall.ESTALE
	case child == old:
		return nil
	case child.entries != nil && dir.below(child):
		return syscall.EINVAL
	case old != nil && old.entries != nil && child.entries == nil:
		return syscall.EISDIR
	case old != nil && old.entries == nil && child.entries != nil:
		return syscall.ENOTDIR
	case old != nil && len(old.entries) > 0:
		return syscall.ENOTEMPTY
	case old != nil:
		dir.drop(name)
	}
	delete(n.entries, from)
	n.modified()
	if child.entries != nil {
		n.a.links--
	}
	dir.put(name, child)
	child.changed()
	return nil
}

// below reports whether a directory is another one, or below it. mu is held.
func (n *memoryNode) below(other *memoryNode) bool {
	for ; n != other; n = n.parent {
		if n == n.parent {
			return false
		}
	}
	return true
}

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
	switch {
	case n.a.links == 0:
		return syscall.ESTALE
	case size > math.MaxInt/2: // with 32 bits, the address space
		return syscall.EFBIG
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
	n.atime.Store(n.m.clock.Now().UnixNano())
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
	n.m.lock()
	defer n.m.mu.Unlock()
	if off < 0 || off > n.m.limit {
		return 0, syscall.ENOSPC
	}
	if end := off + int64(len(b)); end > int64(len(n.data)) {
		if err := n.resize(end); err != nil {
			return 0, err
		}
	}
	n.modified()
	return copy(n.data[off:], b), nil
}

// Truncate implements storeFile.
func (n *memoryNode) Truncate(size int64) error {
	n.m.lock()
	defer n.m.mu.Unlock()
	n.modified()
	return n.resize(size)
}
