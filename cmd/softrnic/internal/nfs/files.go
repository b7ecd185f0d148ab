package nfs

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// files are open files that are kept for further accesses. A file that has data which is not on
// stable storage stays open: Linux reports an error of its write-back once for each open file, and
// forgets it when the inode leaves memory. So a file is synced before it is closed, and COMMIT uses
// the file that the data was written to.
type files struct {
	// lost is called after a failed write-back, before any other call can sync the same open file.
	lost func()

	mu      sync.Mutex  // is not held while the store is asked: one slow file does not stop others
	open    []*keptFile // the last used one is last
	closing int         // files that drop is closing in the background
	sweep   *time.Timer // nil: not running
}

const (
	maxKept    = 64              // files are kept open
	maxClosing = 64              // and so many more are being synced and closed
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
	f.leave(time.Now())
	return nil
}

// leave ends a use of the file, the last access of which was at a time.
func (f *keptFile) leave(used time.Time) {
	f.cache.mu.Lock()
	f.users--
	if used.After(f.used) {
		f.used = used
	}
	unused := f.users == 0 && f.gone
	f.cache.mu.Unlock()
	if unused {
		_ = f.storeFile.Close() // each write was checked, and synced
	}
}

// get opens a file, or returns a kept one.
func (c *files) get(n inode, id identity, write bool) (*keptFile, error) {
	if f := c.kept(id, write); f != nil {
		return f, nil
	}
	opened, err := n.Open(write)
	if err != nil {
		return nil, err
	}
	return c.add(id, write, opened), nil
}

// commit syncs the data of a file.
func (c *files) commit(n inode, a attributes) error {
	if err := a.kind.regular(); err != nil {
		return err
	}
	if f := c.kept(a.identity, true); f != nil {
		err := stored(f.Sync())
		_ = f.Close()
		return err
	}
	return stored(c.sync(n))
}

// sync brings a file or directory to stable storage, with its attributes.
func (c *files) sync(n inode) error {
	err := n.Sync()
	if outOfDescriptors(err) {
		c.shrink()
		err = n.Sync()
	}
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
			c.open = append(slices.Delete(c.open, i, i+1), f)
			return f
		}
	}
	return nil
}

// add keeps an open file, and returns it for its first use. If that makes too many, others are
// dropped in the background, unless those are too many too.
func (c *files) add(id identity, write bool, open storeFile) *keptFile {
	f := &keptFile{storeFile: open, cache: c, id: id, write: write, users: 1}
	c.mu.Lock()
	c.open = append(c.open, f)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(sweepEvery, c.closeIdle)
	}
	var idle *keptFile
	for len(c.open)-c.closing > maxKept {
		if idle = c.idle(); idle == nil || c.closing == maxClosing {
			break
		}
		c.closing++
		go c.drop(idle, true)
		idle = nil
	}
	c.mu.Unlock()
	if idle != nil {
		c.drop(idle, false)
	}
	return f
}

// idle returns the file without users that was not used for the longest time, for a use, or nil. mu
// is held.
func (c *files) idle() *keptFile {
	for _, f := range c.open {
		if f.users == 0 {
			f.users++
			return f
		}
	}
	return nil
}

// shrink drops all files without users, to have their descriptors.
func (c *files) shrink() {
	c.mu.Lock()
	most := len(c.open)
	c.mu.Unlock()
	for range most {
		c.mu.Lock()
		f := c.idle()
		c.mu.Unlock()
		if f == nil {
			return
		}
		c.drop(f, false)
	}
}

// drop ends a use of a file, and removes it from the cache unless it has got others meanwhile. What
// was written is synced before. In the background it counts as closing.
func (c *files) drop(f *keptFile, background bool) {
	if f.unsynced.Load() {
		_ = f.Sync() // after an error all clients see another verifier
	}
	c.mu.Lock()
	if f.users == 1 && !f.unsynced.Load() {
		c.remove(f)
	}
	if background {
		c.closing--
	}
	c.mu.Unlock()
	_ = f.Close()
}

// remove removes a file from the cache. The last user closes it. mu is held.
func (c *files) remove(f *keptFile) {
	c.open = slices.DeleteFunc(c.open, func(other *keptFile) bool { return other == f })
	f.gone = true
}

// take removes the files that match from the cache, and closes them. Nobody needs their data.
func (c *files) take(match func(*keptFile) bool) {
	var taken []*keptFile
	c.mu.Lock()
	for _, f := range slices.Clone(c.open) {
		if match(f) {
			f.users++
			c.remove(f)
			taken = append(taken, f)
		}
	}
	c.mu.Unlock()
	for _, f := range taken {
		_ = f.Close()
	}
}

// forget drops a file that has no name any more.
func (c *files) forget(id identity) { c.take(func(f *keptFile) bool { return f.id == id }) }

// closeIdle drops the files that have been idle, and those without a name, which only occupy space.
func (c *files) closeIdle() {
	var unused []*keptFile
	c.mu.Lock()
	for _, f := range c.open {
		if f.users == 0 {
			f.users++
			unused = append(unused, f)
		}
	}
	c.mu.Unlock()
	for _, f := range unused {
		c.mu.Lock()
		used := f.used
		c.mu.Unlock()
		a, err := f.Attributes()
		switch {
		case err == nil && a.links == 0:
			c.take(func(other *keptFile) bool { return other == f })
			_ = f.Close()
		case time.Since(used) >= keptIdle:
			c.drop(f, false)
		default:
			f.leave(used)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) > 0 && c.sweep != nil {
		c.sweep.Reset(sweepEvery)
	} else {
		c.sweep = nil
	}
}

// clear closes all files. Data that was not committed need not be synced: the next server has
// another verifier.
func (c *files) clear() {
	c.mu.Lock()
	if c.sweep != nil {
		c.sweep.Stop()
		c.sweep = nil
	}
	c.mu.Unlock()
	c.take(func(*keptFile) bool { return true })
}
