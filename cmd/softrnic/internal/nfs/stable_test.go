package nfs

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/tests/stacktest"
)

// commit makes a COMMIT, and returns the status and the verifier.
func (c *client) commit(t testing.TB, file []byte) (s status, verifier uint64) {
	t.Helper()
	s, x := c.nfs(t, procCommit, file, uint64(0), 0)
	if s != nfsOK {
		return s, 0
	}
	x.wcc()
	return s, x.uint64()
}

// failing returns a hook whose next n calls fail.
func failing(n int32, err error) func(string) error {
	left := atomic.Int32{}
	left.Store(n)
	return func(string) error {
		if left.Add(-1) >= 0 {
			return err
		}
		return nil
	}
}

// TestFailedWriteBack: a client's COMMIT is told of a failed write-back, which the disk reports
// once. All other clients see another verifier, so that they repeat what they have written, to any
// file.
func TestFailedWriteBack(t *testing.T) {
	for errno, want := range map[syscall.Errno]status{syscall.EIO: nfsIO, syscall.ENOSPC: nfsNospc, syscall.EDQUOT: nfsDquot,
		syscall.EBADF: nfsIO, syscall.EACCES: nfsIO} {
		t.Run(errno.Error(), func(t *testing.T) {
			s := &hookedStore{store: opened(t, t.TempDir())}
			e := exported(t, s, false)
			a, b := local(e), local(e)
			root := a.mount(t, "/")
			file, other := a.create(t, root, "file"), a.create(t, root, "other")
			a.write(t, file, 0, []byte("of A"), 0)
			_, before := b.write(t, file, 4096, []byte("of B"), 0)
			b.write(t, other, 0, []byte("of B"), 0)
			s.syncFile = failing(1, errno)
			if got, _ := a.commit(t, file); got != want {
				t.Errorf("COMMIT: %d, not %d", got, want)
			}
			for _, f := range [][]byte{file, other} {
				if got, after := b.commit(t, f); got != nfsOK || after == before {
					t.Errorf("the other client's COMMIT: %d, verifier %#x", got, after)
				}
			}
			// What is written again can be committed.
			_, again := b.write(t, file, 4096, []byte("of B"), 0)
			if got, after := b.commit(t, file); got != nfsOK || after != again || again == before {
				t.Errorf("after writing again: %d, verifiers %#x and %#x", got, again, after)
			}
		})
	}
}

// TestConcurrentCommits: of two COMMITs at a time, the disk reports a failure to one only. The
// other one does not end with the old verifier.
func TestConcurrentCommits(t *testing.T) {
	s := &hookedStore{store: opened(t, t.TempDir())}
	e := exported(t, s, false)
	a, b := local(e), local(e)
	root := a.mount(t, "/")
	file := a.create(t, root, "file")
	_, before := a.write(t, file, 0, []byte("text"), 0)
	type outcome struct {
		status   status
		verifier uint64
	}
	second := make(chan outcome, 1)
	var calls atomic.Int32
	s.syncFile = func(string) error {
		if calls.Add(1) != 1 {
			return nil
		}
		go func() {
			got, verifier := b.commit(t, file)
			second <- outcome{got, verifier}
		}()
		stacktest.AwaitWaiting(t, "nfs.(*keptFile).Sync", "sync.Mutex.Lock")
		return syscall.EIO
	}
	if got, _ := a.commit(t, file); got != nfsIO {
		t.Errorf("the first COMMIT: %d", got)
	}
	if o := <-second; o.status == nfsOK && o.verifier == before {
		t.Error("the second COMMIT succeeds with the old verifier")
	}
}

// TestSyncBeforeClose: a file with data that is not committed is synced before the server closes
// it, because a later COMMIT would not be told of an error.
func TestSyncBeforeClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &hookedStore{store: newMemory(1 << 20)}
		var synced []string
		failure := failing(1, syscall.EIO)
		s.syncFile = func(name string) error {
			synced = append(synced, name)
			return failure(name)
		}
		e := newExport(s, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		file := c.create(t, root, "file")
		_, before := c.write(t, file, 0, []byte("text"), 0)
		for i := range maxKept + 1 {
			c.create(t, root, fmt.Sprint(i))
		}
		synctest.Wait()
		if !slices.Equal(synced, []string{"file"}) {
			t.Errorf("synced: %q", synced)
		}
		if got, after := c.commit(t, file); got != nfsOK || after == before {
			t.Errorf("COMMIT: %d, verifier %#x and before %#x", got, after, before)
		}
		ok(t, e.close())
	})
}

// TestStableWrites: a WRITE with DATA_SYNC or FILE_SYNC is synced before its reply, and fails with
// the sync. An unstable one is not synced.
func TestStableWrites(t *testing.T) {
	s := &hookedStore{store: opened(t, t.TempDir())}
	synced := 0
	var failure error
	s.syncFile = func(string) error {
		synced++
		return failure
	}
	c := local(exported(t, s, false))
	file := c.create(t, c.mount(t, "/"), "file")
	for stable, want := range []int{0, 1, 2} {
		committed, _ := c.write(t, file, 0, []byte("text"), stable)
		if synced != want || (committed != 0) != (stable != 0) {
			t.Errorf("stability %d: synced %d times, and the reply says %d", stable, synced, committed)
		}
	}
	for stable := 1; stable <= 2; stable++ {
		_, before := c.write(t, file, 0, []byte("text"), 0)
		failure = syscall.ENOSPC
		if got, _ := c.nfs(t, procWrite, file, uint64(0), 4, stable, "data"); got != nfsNospc {
			t.Errorf("stability %d: status %d after a failed sync", stable, got)
		}
		failure = nil
		if _, after := c.commit(t, file); after == before {
			t.Errorf("stability %d: the verifier is the same after a failed sync", stable)
		}
	}
}

// TestSynced: each call that changes names or attributes syncs the files and directories before its
// reply. If it cannot, it fails, and clients see another verifier.
func TestSynced(t *testing.T) {
	s := &hookedStore{store: opened(t, t.TempDir())}
	var synced []string
	var failure error
	s.sync = func(name string) error {
		synced = append(synced, name)
		return failure
	}
	c := local(exported(t, s, false))
	root := c.mount(t, "/")
	a, b := c.mkdir(t, root, "a"), c.mkdir(t, root, "b")
	file := c.create(t, a, "file")
	for _, x := range []struct {
		procedure uint32
		list      []any
		want      []string
	}{
		{procSetattr, []any{file, 1, 0o640, 0, 0, 1, uint64(3), 0, 2, 5, 0, 0}, []string{"a/file"}},
		{procCreate, join([]any{a, "new", createGuarded}, noAttributes), []string{"a/new", "a"}},
		{procCreate, []any{a, "new", 0, 0, 0, 0, 1, uint64(7), 0, 0}, []string{"a/new"}}, // it exists
		{procMkdir, join([]any{b, "dir"}, noAttributes), []string{"b/dir", "b"}},
		{procSymlink, join([]any{root, "symlink"}, noAttributes, []any{"target"}), []string{"."}},
		{procLink, []any{file, b, "link"}, []string{"a/file", "b"}},
		{procRename, []any{a, "new", b, "moved"}, []string{"a", "b"}},
		{procRename, []any{a, "file", a, "renamed"}, []string{"a"}},
		{procRemove, []any{b, "moved"}, []string{"b"}},
		{procRmdir, []any{b, "dir"}, []string{"b"}},
		{procGetattr, []any{file}, nil},
		{procLookup, []any{a, "renamed"}, nil},
	} {
		synced = nil
		c.must(t, x.procedure, x.list...)
		if !slices.Equal(synced, x.want) {
			t.Errorf("procedure %d: synced %q, not %q", x.procedure, synced, x.want)
		}
	}
	file = c.create(t, root, "file")
	for procedure, list := range map[uint32][]any{
		procSetattr: {file, 1, 0o640, 0, 0, 0, 0, 0, 0}, procCreate: join([]any{root, "new", createGuarded}, noAttributes),
		procMkdir: join([]any{root, "dir"}, noAttributes), procSymlink: join([]any{root, "another"}, noAttributes, []any{"target"}),
		procLink: {file, root, "link"}, procRename: {b, "link", root, "moved"}, procRemove: {root, "symlink"}, procRmdir: {root, "empty"},
	} {
		if procedure == procRmdir {
			c.mkdir(t, root, "empty")
		}
		_, before := c.write(t, file, 0, []byte("text"), 0)
		failure = syscall.EIO
		if got, _ := c.nfs(t, procedure, list...); got != nfsIO {
			t.Errorf("procedure %d: status %d after a failed sync", procedure, got)
		}
		failure = nil
		if _, after := c.commit(t, file); after == before {
			t.Errorf("procedure %d: the verifier is the same after a failed sync", procedure)
		}
	}
}
