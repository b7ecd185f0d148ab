package nfs

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestCommitsAreBounded: a client commits many files by all of its connections while the disk is
// slow. Each COMMIT that is inside the kernel occupies a thread. Other clients are served.
func TestCommitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		s := &hookedStore{store: newMemory(64 << 20)}
		e := newExport(s, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		var files [][]byte
		for i := range 1000 {
			files = append(files, c.create(t, root, fmt.Sprint(i)))
		}
		s.sync, s.syncFile = g.hook, g.hook
		var ended atomic.Int32
		for i, file := range files {
			go func() {
				from(t.Context(), e, "10.0.0.9", callOf(uint32(i), programNFS, version3, procCommit, file, uint64(0), 0))
				ended.Add(1)
			}()
		}
		synctest.Wait()
		if n := g.inside.Load(); n != maxWorkersOfPeer {
			t.Errorf("%d COMMITs are inside the store", n)
		}
		if n := e.workers.waited.Load(); n != 1000-maxWorkersOfPeer {
			t.Errorf("%d calls have waited", n)
		}
		c.getattr(t, files[0])
		close(g.release)
		synctest.Wait()
		if n := ended.Load(); int(n) != len(files) || int(g.calls.Load()) != len(files) {
			t.Errorf("%d COMMITs have ended, of %d syncs", n, g.calls.Load())
		}
		ok(t, e.close())
	})
}

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestMemoryOfTruncatedFiles: what a file in memory has occupied is free after its truncation.
func TestMemoryOfTruncatedFiles(t *testing.T) {
	const limit = 8 << 20
	m := newMemory(limit)
	c := local(exported(t, m, false))
	root := c.mount(t, "/")
	data := make([]byte, 1<<20)
	before := heap()
	for i := range 20 {
		file := c.create(t, root, fmt.Sprint(i))
		for off := range uint64(5) {
			c.write(t, file, off<<20, data, 0)
		}
		for _, size := range []uint64{3 << 20, 1000, 0} {
			c.must(t, procSetattr, file, 0, 0, 0, 1, size, 0, 0, 0)
			if got, _ := c.read(t, file, 0, 1<<20); len(got) != int(min(size, 1<<20)) {
				t.Errorf("%d bytes after the truncation to %d", len(got), size)
			}
		}
	}
	if n := heap() - before; n > limit {
		t.Errorf("the heap has %d KiB more: the limit is %d KiB, and all files are empty", n>>10, limit>>10)
	}
	if m.used > 20*entryCost {
		t.Errorf("%d bytes are in use", m.used)
	}
	runtime.KeepAlive(m)
}

// TestMemoryOfEmptyFiles: files count what they occupy, with their names and handles.
func TestMemoryOfEmptyFiles(t *testing.T) {
	const limit = 8 << 20
	m := newMemory(limit)
	c := local(exported(t, m, false))
	root := c.mount(t, "/")
	dir := root
	for i := range 5 { // long paths
		dir = c.mkdir(t, dir, fmt.Sprint(i, strings.Repeat("d", 250)))
	}
	before := heap()
	n := 0
	for ; ; n++ {
		s, _ := c.nfs(t, procCreate, join([]any{dir, fmt.Sprintf("%05d%s", n, strings.Repeat("f", 250)), createGuarded}, noAttributes)...)
		if s != nfsOK {
			if s != nfsNospc {
				t.Error(s)
			}
			break
		}
	}
	c.do = nil // with it go the replies
	if more := heap() - before; more > limit*5/4 {
		t.Errorf("%d empty files occupy %d KiB: the limit is %d KiB", n, more>>10, limit>>10)
	}
	runtime.KeepAlive(m)
}

// TestLargestSize: a size that no file can have is refused, and nothing stays open or is created.
func TestLargestSize(t *testing.T) {
	overExports(t, func(t *testing.T, e *export) {
		c := local(e)
		root := c.mount(t, "/")
		file := c.create(t, root, "file")
		for range 3 {
			if s, _ := c.nfs(t, procSetattr, file, 0, 0, 0, 1, uint64(1)<<63, 0, 0, 0); s != nfsInval {
				t.Errorf("SETATTR: %d", s)
			}
		}
		if s, _ := c.nfs(t, procCreate, root, "new", createGuarded, 0, 0, 0, 1, uint64(1)<<63, 0, 0); s != nfsInval {
			t.Errorf("CREATE: %d", s)
		}
		if s, _ := c.nfs(t, procLookup, root, "new"); s != nfsNoent {
			t.Errorf("LOOKUP of what was not created: %d", s)
		}
		// The file system may refuse these.
		c.nfs(t, procSetattr, file, 0, 0, 0, 1, uint64(1)<<62, 0, 0, 0)
		c.nfs(t, procWrite, file, uint64(1)<<62, 1, 0, "x")
		for _, f := range e.files.open {
			if f.users != 0 {
				t.Errorf("a file has %d users", f.users)
			}
		}
	})
}

// openFiles returns the number of files that an export keeps open.
func openFiles(e *export) int {
	e.files.mu.Lock()
	defer e.files.mu.Unlock()
	return len(e.files.open)
}

func overExports(t *testing.T, f func(*testing.T, *export)) {
	t.Run("directory", func(t *testing.T) { f(t, exported(t, opened(t, t.TempDir()), false)) })
	t.Run("memory", func(t *testing.T) { f(t, exported(t, newMemory(1<<20), false)) })
}

// TestOutOfDescriptors: the server closes what it only keeps. If that is not enough, it asks the
// client to try again.
func TestOutOfDescriptors(t *testing.T) {
	s := &hookedStore{store: opened(t, t.TempDir())}
	e := exported(t, s, false)
	c := local(e)
	root := c.mount(t, "/")
	file := c.create(t, root, "file")
	c.write(t, file, 0, []byte("text"), 0)
	s.open = func(string) error {
		if openFiles(e) > 0 {
			return syscall.EMFILE
		}
		return nil
	}
	if got, _ := c.read(t, file, 0, 10); string(got) != "text" {
		t.Errorf("%q", got)
	}
	s.open = func(string) error { return syscall.ENFILE }
	e.files.clear()
	for procedure, list := range map[uint32][]any{procRead: {file, uint64(0), 10}, procWrite: {file, uint64(0), 1, 0, "x"},
		procSetattr: {file, 0, 0, 0, 1, uint64(1), 0, 0, 0}} {
		if got, _ := c.nfs(t, procedure, list...); got != nfsJukebox {
			t.Errorf("procedure %d: status %d without descriptors", procedure, got)
		}
	}
}

// TestRemovedFilesAreClosed: a file that another program removes, and one that nobody uses any
// more, is not open for ever. What was written is synced before.
func TestRemovedFilesAreClosed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no link counts")
	}
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := &hookedStore{store: opened(t, dir)}
		var synced atomic.Int32
		s.syncFile = func(string) error {
			synced.Add(1)
			return nil
		}
		e := newExport(s, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		for _, name := range []string{"removed", "idle"} {
			c.write(t, c.create(t, root, name), 0, []byte("text"), 0)
		}
		ok(t, os.Remove(filepath.Join(dir, "removed")))
		time.Sleep(sweepEvery + time.Second)
		synctest.Wait()
		if openFiles(e) != 1 || synced.Load() != 0 {
			t.Errorf("%d files are open, and %d were synced, after one was removed", openFiles(e), synced.Load())
		}
		time.Sleep(keptIdle)
		synctest.Wait()
		if openFiles(e) != 0 || synced.Load() != 1 {
			t.Errorf("%d files are open, and %d were synced, after %v", openFiles(e), synced.Load(), keptIdle)
		}
		ok(t, e.close())
	})
}
