package nfs

import (
	"errors"
	"io/fs"
	"time"
)

// The procedures that change the entries of directories.

// made appends the results for a new file in a directory, both of which have changed.
func (x *execution) made(n inode, dir found) {
	x.changed = append(x.changed, n, dir.inode)
	x.entry(n, dir, 1)
}

// entry appends the results for a file in a directory, of the calls that create one. The call has
// changed the directory once, or not at all.
func (x *execution) entry(n inode, dir found, changes uint64) {
	x.words(1)
	x.reply = appendOpaque(x.reply, n.Handle())
	x.postOp(n)
	x.wcc(dir, changes)
}

func (x *execution) create() error {
	dir, name, err := x.directory(0)
	if err != nil {
		return err
	}
	how, set := x.uint32(2), x.set
	if how > createExclusive {
		return nfsInval
	}
	if how == createExclusive {
		// The verifier is kept in the times (RFC 1813 §3.3.8), without the bits that not all file
		// systems can store. The client sets attributes later.
		const stored = 1<<31 - 1
		mode := uint32(0o600)
		atime, mtime := time.Unix(int64(x.word(2, 1)&stored), 0), time.Unix(int64(x.word(2, 2)&stored), 0)
		set = sattr{mode: &mode, atime: &atime, mtime: &mtime}
	}
	set.size = nil
	n, file, err := dir.Create(name, &set)
	if errors.Is(err, fs.ErrExist) && how != createGuarded {
		return x.exists(dir, name, how, set)
	}
	if err != nil {
		return err
	}
	x.nodes = append(x.nodes, n)
	a, err := n.Attributes()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	// It stays open for a while: its client may write to it even if the mode does not allow that.
	f := x.files.add(a.identity, true, file)
	defer func() { _ = f.Close() }()
	if x.set.size != nil && *x.set.size != 0 {
		if err := f.Truncate(int64(*x.set.size)); err != nil {
			return err
		}
	}
	x.made(n, dir)
	return nil
}

// exists ends a CREATE whose name exists. If it is UNCHECKED it may set the size, and nothing else.
// If it is EXCLUSIVE the file may be that of the same call: it has its times, and no data yet.
func (x *execution) exists(dir found, name string, how uint32, set sattr) error {
	n, err := x.keep(dir.Lookup(name))
	if err != nil {
		return err
	}
	a, err := n.Attributes()
	switch {
	case err != nil:
		return err
	case a.kind != kindRegular:
		return nfsExist
	case how == createExclusive:
		if a.size != 0 || a.atime.Unix() != set.atime.Unix() || a.mtime.Unix() != set.mtime.Unix() {
			return nfsExist
		}
		x.changed = append(x.changed, n, dir.inode)
	case x.set.size != nil && a.identity != x.truncates: // it was replaced since the range was entered
		return nfsJukebox
	case x.set.size != nil:
		if err := x.truncate(n, a); err != nil {
			return err
		}
		x.changed = append(x.changed, n)
	}
	x.entry(n, dir, 0)
	return nil
}

func (x *execution) mkdir() error {
	dir, name, err := x.directory(0)
	if err != nil {
		return err
	}
	n, err := x.keep(dir.Mkdir(name, &x.set))
	if err == nil {
		x.made(n, dir)
	}
	return err
}

func (x *execution) symlink() error {
	dir, name, err := x.directory(0)
	if err != nil {
		return err
	}
	n, err := x.keep(dir.Symlink(string(x.bytes(3)), name))
	if err == nil { // its directory's sync is enough: a link has no data of its own to sync
		x.changed = append(x.changed, dir.inode)
		x.entry(n, dir, 1)
	}
	return err
}

// mknod creates FIFOs and sockets, which clients use among themselves. Devices would be those of
// the server too, for its local users, and are refused as if the server's user had no right to
// them.
func (x *execution) mknod() error {
	dir, name, err := x.directory(0)
	if err != nil {
		return err
	}
	switch k := kind(x.uint32(2)); k {
	case kindFIFO, kindSocket:
		n, err := x.keep(dir.Mknod(name, k, &x.set))
		if err == nil {
			x.made(n, dir)
		}
		return err
	case kindBlock, kindCharacter:
		return nfsPerm
	}
	return nfsBadtype
}

func (x *execution) remove() error {
	dir, name, err := x.directory(0)
	if err != nil {
		return err
	}
	gone, _ := x.keep(dir.Lookup(name)) // without it Remove has the error
	if err := dir.Remove(name, x.procedure == procRmdir); err != nil {
		return err
	}
	x.forget(gone)
	x.changed = append(x.changed, dir.inode)
	x.wcc(dir, 1)
	return nil
}

// forget closes a file that has lost a name, if it was the last one.
func (x *execution) forget(n inode) {
	if n == nil {
		return
	}
	if a, err := n.Attributes(); err == nil && a.links == 0 {
		x.files.forget(a.identity)
	}
}

func (x *execution) rename() error {
	from, name, err := x.directory(0)
	if err != nil {
		return err
	}
	to, newName, err := x.directory(2)
	if err != nil {
		return err
	}
	replaced, _ := x.keep(to.Lookup(newName))
	moved, _ := x.keep(from.Lookup(name))
	changes := uint64(1)
	if sameFile(moved, replaced) { // nothing happens
		changes = 0
	}
	if err := from.Rename(name, to.inode, newName); err != nil {
		return err
	}
	x.forget(replaced)
	x.changed = append(x.changed, from.inode)
	if string(x.bytes(0)) != string(x.bytes(2)) {
		x.changed = append(x.changed, to.inode)
	}
	x.wcc(from, changes)
	x.wcc(to, changes)
	return nil
}

// sameFile reports whether two files are there, and are one.
func sameFile(a, b inode) bool {
	if a == nil || b == nil {
		return false
	}
	x, errA := a.Attributes()
	y, errB := b.Attributes()
	return errA == nil && errB == nil && x.identity == y.identity
}

func (x *execution) link() error {
	n, _, err := x.find(0)
	if err != nil {
		return err
	}
	dir, name, err := x.directory(1)
	if err != nil {
		return err
	}
	if err := dir.Link(n, name); err != nil {
		return err
	}
	x.changed = append(x.changed, n, dir.inode)
	x.postOp(n)
	x.wcc(dir, 1)
	return nil
}
