package nfs

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"
)

// directory is a directory as a store.
type directory struct {
	top     ref
	device  uint64 // of its file system
	handles *handles

	mu    sync.Mutex
	modes map[identity]chan struct{} // files whose mode is changed, until the channel is closed
}

func openDirectory(name string) (*directory, error) {
	if err := checkRefs(); err != nil {
		return nil, err
	}
	top, err := openRef(name)
	if err != nil {
		return nil, err
	}
	a, device, err := top.statTop()
	if err != nil {
		return nil, errors.Join(err, top.close())
	}
	d := &directory{top: top, device: device, modes: map[identity]chan struct{}{}}
	d.handles = newHandles(d, a.identity)
	return d, nil
}

func (d *directory) Close() error { return d.top.close() }

func (d *directory) Space() (space, error) { return d.top.space() }

func (d *directory) Root() (inode, error) { return asInode(d.root()) }

func (d *directory) root() (*fileNode, error) {
	r, err := d.top.again()
	if err != nil {
		return nil, err
	}
	return &fileNode{ref: r, d: d, known: d.handles.root, kind: kindDirectory}, nil
}

func (d *directory) Identify(handle []byte) (identity, bool) {
	id, _, _, ok := d.handles.decode(handle)
	return id, ok
}

func (d *directory) Find(handle []byte) (inode, error) { return asInode(d.handles.find(handle)) }

// walk returns the file that has a name below the root.
func (d *directory) walk(elements []string) (*fileNode, error) {
	n, err := d.root()
	for _, name := range elements {
		if err != nil {
			return nil, err
		}
		var child *fileNode
		child, err = n.lookup(name)
		_ = n.Close()
		n = child
	}
	return n, err
}

// fileNode is a file of a directory as an inode.
type fileNode struct {
	ref
	d     *directory
	known *knownFile
	kind  kind
}

func (n *fileNode) Close() error { return n.ref.close() }

func (n *fileNode) Attributes() (attributes, error) { return n.ref.attributes() }

func (n *fileNode) Handle() []byte { return n.d.handles.encode(n.known) }

func (n *fileNode) Access(rights uint32) bool { return n.ref.access(rights) }

func (n *fileNode) Readlink() (string, error) { return n.ref.readlink() }

func (n *fileNode) Parent() (inode, error) {
	return asInode(n.d.walk(n.d.handles.directoryOf(n.known)))
}

func (n *fileNode) Lookup(name string) (inode, error) { return asInode(n.lookup(name)) }

func (n *fileNode) lookup(name string) (*fileNode, error) {
	r, a, err := n.ref.lookup(name, n.d.device)
	if err != nil {
		return nil, err
	}
	return &fileNode{ref: r, d: n.d, known: n.d.handles.put(a.identity, n.known, name), kind: a.kind}, nil
}

func (n *fileNode) Stat(name string) (attributes, []byte, error) {
	a, err := n.ref.statAt(name, n.d.device)
	if err != nil {
		return a, nil, err
	}
	return a, n.d.handles.encode(n.d.handles.put(a.identity, n.known, name)), nil
}

func (n *fileNode) List(each func(name string, number uint64)) error {
	if n.kind != kindDirectory {
		return syscall.ENOTDIR
	}
	return n.ref.list(func(name string, number uint64, _ bool) { each(name, number) })
}

// Change implements inode. The owner comes first: a change of it takes away bits of the mode.
func (n *fileNode) Change(c *sattr) error {
	a, err := n.Attributes()
	if err != nil {
		return err
	}
	if uid, gid, given := c.owner(); given {
		if err := n.ref.chown(uid, gid); err != nil {
			return err
		}
	}
	if c.mode != nil && n.kind != kindSymlink { // Linux has no mode of symbolic links
		unlock := n.d.lockMode(a.identity)
		err := n.ref.chmod(*c.mode & modeBits)
		unlock()
		if err != nil {
			return err
		}
	}
	if atime, mtime, changed := c.times(a); changed {
		return n.ref.chtimes(atime, mtime)
	}
	return nil
}

// lockMode waits until no other call changes the mode of a file: openAsOwner sets back what it was.
func (d *directory) lockMode(id identity) (unlock func()) {
	for {
		d.mu.Lock()
		changing := d.modes[id]
		if changing == nil {
			ended := make(chan struct{})
			d.modes[id] = ended
			d.mu.Unlock()
			return func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				delete(d.modes, id)
				close(ended)
			}
		}
		d.mu.Unlock()
		<-changing
	}
}

func (n *fileNode) Open(write bool) (storeFile, error) {
	if err := n.kind.regular(); err != nil {
		return nil, err
	}
	f, err := n.ref.open(write)
	if errors.Is(err, fs.ErrPermission) {
		return n.openAsOwner(write, err)
	}
	return f, err
}

// openAsOwner opens a file whose mode does not allow that to its owner, who is this user. On a
// client the file may have been open since before it got this mode, and NFS has no open: so a
// server allows to the owner what the mode does not (RFC 1813 §4.4). For a moment the mode allows
// it too, to nobody else.
func (n *fileNode) openAsOwner(write bool, refused error) (storeFile, error) {
	defer n.d.lockMode(n.known.id)()
	a, err := n.Attributes()
	if err != nil {
		return nil, err
	}
	if n.ref.chmod(a.mode|0o600) != nil { // this user is not the owner
		return nil, refused
	}
	f, err := n.ref.open(write)
	if restored := n.ref.chmod(a.mode); restored != nil && err == nil {
		return nil, errors.Join(restored, f.Close())
	}
	return f, err
}

// Sync implements inode. It is fsync for what can be opened. A symbolic link, a FIFO, and a file
// whose mode allows nothing to this user, cannot: then it syncs all of the file system.
func (n *fileNode) Sync() error {
	err := n.ref.sync(n.kind)
	if !errors.Is(err, errUnopened) {
		return err
	}
	at := n
	if n.kind != kindDirectory {
		if at, err = n.d.walk(n.d.handles.directoryOf(n.known)); err != nil {
			return n.d.top.syncAll()
		}
		defer func() { _ = at.Close() }()
	}
	if err := at.syncAll(); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return n.d.top.syncAll()
}

// made returns the new file that has a name, and sets the attributes that c has. Until then its
// mode was not wider. Without attributes it is removed again. file is nil, or the new file.
func (n *fileNode) made(name string, directory bool, c *sattr, file storeFile) (inode, error) {
	child, err := n.lookup(name)
	if err != nil {
		return nil, errors.Join(err, n.ref.remove(name, directory))
	}
	a, err := child.Attributes()
	if err == nil && file != nil {
		created, err2 := file.Attributes()
		if err = err2; err == nil && created.identity != a.identity { // another program has replaced it
			return nil, errors.Join(syscall.ESTALE, child.Close())
		}
	}
	if err == nil && directory && c.mode != nil {
		mode := *c.mode | a.mode&0o2000 // which directories inherit
		set := *c
		c, set.mode = &set, &mode
	}
	if err == nil {
		err = child.Change(c)
	}
	if err != nil {
		return nil, errors.Join(err, child.Close(), n.ref.remove(name, directory))
	}
	return child, nil
}

// modeAtFirst returns the mode to create a file with: that of c without the bits that are for
// others, which Change sets, or the usual one.
func modeAtFirst(c *sattr, usual uint32) uint32 {
	if c.mode != nil {
		return *c.mode & 0o700
	}
	return usual
}

func (n *fileNode) Create(name string, c *sattr) (inode, storeFile, error) {
	f, err := n.ref.create(name, modeAtFirst(c, 0o666))
	if err != nil {
		return nil, nil, err
	}
	child, err := n.made(name, false, c, f)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return child, f, nil
}

func (n *fileNode) Mkdir(name string, c *sattr) (inode, error) {
	if err := n.ref.mkdir(name, modeAtFirst(c, 0o777)); err != nil {
		return nil, err
	}
	return n.made(name, true, c, nil)
}

func (n *fileNode) Symlink(target, name string) (inode, error) {
	if err := n.ref.symlink(target, name); err != nil {
		return nil, err
	}
	return n.made(name, false, new(sattr), nil)
}

func (n *fileNode) Mknod(name string, k kind, c *sattr) (inode, error) {
	if err := n.ref.mknod(name, k, modeAtFirst(c, 0o666)); err != nil {
		return nil, err
	}
	return n.made(name, false, c, nil)
}

func (n *fileNode) Link(file inode, name string) error {
	if err := n.ref.link(file.(*fileNode).ref, name); err != nil {
		return err
	}
	n.d.handles.put(file.(*fileNode).known.id, n.known, name)
	return nil
}

func (n *fileNode) Remove(name string, directory bool) error {
	r, a, err := n.ref.lookup(name, n.d.device)
	if err != nil {
		return err
	}
	defer func() { _ = r.close() }()
	if err := n.ref.remove(name, directory); err != nil {
		return err
	}
	n.d.handles.removed(a.identity)
	return nil
}

func (n *fileNode) Rename(from string, to inode, name string) error {
	dir := to.(*fileNode)
	replaced, a, err := dir.ref.lookup(name, n.d.device)
	if err == nil {
		defer func() { _ = replaced.close() }()
	}
	if err := n.ref.rename(from, dir.ref, name); err != nil {
		return err
	}
	if err == nil {
		n.d.handles.removed(a.identity)
	}
	if child, err := dir.lookup(name); err == nil { // which has another name now
		_ = child.Close()
	}
	return nil
}

// hash returns a number for a string (FNV-1a, 64 bits).
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range []byte(s) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}
