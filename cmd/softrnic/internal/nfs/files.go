package nfs

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/willscott/go-nfs/file"
)

// files are open files that are kept for further accesses. A file that has data which is not on
// stable storage stays open: Linux reports an error of its write-back once for each open file, and
// forgets it when the inode leaves memory. So a file is synced before it is closed, and COMMIT uses
// the file that the data was written to.
type files struct {
	store store
	// lost is called after a failed write-back, before any other call can sync the same open file.
	lost func()

	mu    sync.Mutex
	open  []*keptFile // the last used one is last
	sweep *time.Timer // nil: not running
}

const (
	maxKept    = 64              // files are kept open
	keptIdle   = 5 * time.Minute // then a file is closed
	sweepEvery = 10 * time.Second
)

// keptFile is an open file in the cache. It is closed when it has left the cache and has no users.
type keptFile struct {
	storeFile
	cache *files
	id    identity
	write bool

	syncing  sync.Mutex
	unsynced atomic.Bool // something was written after the last Sync

	// cache.mu protects these.
	users int
	used  time.Time // at last
	gone  bool      // from the cache
}

// WriteAt implements storeFile.
func (f *keptFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.storeFile.WriteAt(b, off)
	f.unsynced.Store(true)
	return n, err
}

// Truncate implements storeFile.
func (f *keptFile) Truncate(size int64) error {
	err := f.storeFile.Truncate(size)
	f.unsynced.Store(true)
	return err
}

// Sync implements storeFile. Two calls at a time could be told of one failure only once, and the
// second one would return before the first one has changed the verifier.
func (f *keptFile) Sync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.unsynced.Store(false)
	err := f.storeFile.Sync()
	if err != nil {
		f.cache.lost()
	}
	return err
}

// Close ends a use of the file.
func (f *keptFile) Close() error {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	f.users--
	f.used = time.Now()
	f.closeUnused()
	return nil
}

// closeUnused closes a file that has left the cache. cache.mu is held.
func (f *keptFile) closeUnused() {
	if f.users == 0 && f.gone {
		_ = f.storeFile.Close() // each write was checked, and synced
	}
}

// get opens a file, or returns a kept one.
func (c *files) get(name string, write bool) (*keptFile, error) {
	id, err := c.identity(name)
	if err != nil {
		return nil, err
	}
	if f := c.kept(id, write); f != nil {
		return f, nil
	}
	opened, err := c.store.Open(name, write)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		c.shrink(0)
		opened, err = c.store.Open(name, write)
	}
	if err != nil {
		return nil, err
	}
	if now, err := c.identity(name); err != nil || now != id { // it was replaced meanwhile
		return nil, errors.Join(&fs.PathError{Op: "open", Path: name, Err: syscall.ESTALE}, opened.Close())
	}
	return c.add(id, write, opened), nil
}

func (c *files) identity(name string) (identity, error) {
	info, err := c.store.Lstat(name)
	if err != nil {
		return identity{}, err
	}
	return c.store.Identity(name, info), nil
}

// create creates a file. It is kept open for a while: its client may write to it even if the mode
// that it sets then does not allow that.
func (c *files) create(name string, perm fs.FileMode) error {
	if err := c.store.Create(name, perm); err != nil {
		return err
	}
	if f, err := c.get(name, true); err == nil {
		return f.Close()
	}
	return nil
}

// commit syncs the data of a file.
func (c *files) commit(name string) error {
	info, err := c.store.Lstat(name)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "sync", Path: name, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "sync", Path: name, Err: syscall.EINVAL}
	}
	if f := c.kept(c.store.Identity(name, info), true); f != nil {
		return errors.Join(stored(f.Sync()), f.Close())
	}
	return stored(c.sync(name))
}

// sync brings a file or directory to stable storage, with its attributes.
func (c *files) sync(name string) error {
	err := c.store.Sync(name)
	if err != nil {
		c.lost()
	}
	return err
}

// kept returns a kept file for another use, or nil.
func (c *files) kept(id identity, write bool) *keptFile {
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
func (c *files) add(id identity, write bool, open storeFile) *keptFile {
	f := &keptFile{storeFile: open, cache: c, id: id, write: write, users: 1}
	c.mu.Lock()
	c.open = append(c.open, f)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(sweepEvery, c.closeIdle)
	}
	c.mu.Unlock()
	c.shrink(maxKept)
	return f
}

// shrink drops the files that were not used for the longest time, until there are most. Those in
// use remain: their calls are few.
func (c *files) shrink(most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := 0; len(c.open) > most && i < len(c.open); {
		if f := c.open[i]; f.users > 0 || !c.drop(f) {
			i++
		}
	}
}

// drop removes a file without users from the cache, and reports whether it did. What was written is
// synced before, outside of the lock: then the file may have got users again. mu is held.
func (c *files) drop(f *keptFile) bool {
	if f.unsynced.Load() {
		f.users++
		c.mu.Unlock()
		_ = f.Sync() // after an error all clients see another verifier
		c.mu.Lock()
		f.users--
		if f.gone { // its last name was removed
			f.closeUnused()
			return true
		}
		if f.users > 0 || f.unsynced.Load() {
			return false
		}
	}
	c.remove(f)
	return true
}

// remove removes a file from the cache. mu is held.
func (c *files) remove(f *keptFile) {
	for i, other := range c.open {
		if other == f {
			c.open = append(c.open[:i], c.open[i+1:]...)
			f.gone = true
			f.closeUnused()
			return
		}
	}
}

// forget drops a file that has lost a name, if it was the only one. Nobody needs its data. info is
// that from before.
func (c *files) forget(id identity, info fs.FileInfo) {
	if file.GetInfo(info).Nlink > 1 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.open) - 1; i >= 0; i-- {
		if f := c.open[i]; f.id == id {
			c.remove(f)
		}
	}
}

// closeIdle drops the files that have been idle, and those without a name, which only occupy space.
func (c *files) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range append([]*keptFile(nil), c.open...) {
		switch {
		case f.users > 0 || f.gone:
		case nameless(f.storeFile):
			c.remove(f)
		case time.Since(f.used) >= keptIdle:
			c.drop(f)
		}
	}
	if len(c.open) > 0 && c.sweep != nil {
		c.sweep.Reset(sweepEvery)
	} else {
		c.sweep = nil
	}
}

// nameless reports whether an open file has no name any more.
func nameless(f storeFile) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	sys := file.GetInfo(info)
	return sys != nil && sys.Nlink == 0
}

// clear closes all files. None has users. Data that was not committed need not be synced: the next
// server has another verifier.
func (c *files) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sweep != nil {
		c.sweep.Stop()
		c.sweep = nil
	}
	for len(c.open) > 0 {
		c.remove(c.open[0])
	}
}
