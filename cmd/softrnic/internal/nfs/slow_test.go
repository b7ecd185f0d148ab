package nfs

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// onlyOf returns a hook that blocks for one name, once on is true.
func (g *gated) onlyOf(name string, on *atomic.Bool) func(string) error {
	return func(got string) error {
		if got == name && on.Load() {
			return g.hook(got)
		}
		return nil
	}
}

// TestSlowFile: a file whose disk does not answer does not stop the calls for others, whatever the
// server does with it.
func TestSlowFile(t *testing.T) {
	for name, x := range map[string]struct {
		hook func(*hookedStore, func(string) error)
		// starts what waits for the disk, or the time after which that starts
		meet  func(c *client, root []byte)
		after time.Duration
	}{
		"it is removed": {
			func(s *hookedStore, hook func(string) error) { s.closeFile = hook },
			func(c *client, root []byte) {
				go func() { _, _ = c.do(callOf(1<<20, programNFS, version3, procRemove, root, "slow")) }()
			}, 0,
		},
		"it is synced, to open others": {
			func(s *hookedStore, hook func(string) error) { s.syncFile = hook },
			func(*client, []byte) {}, 0,
		},
		"it is looked at, after a while": {
			func(s *hookedStore, hook func(string) error) { s.statFile = hook },
			func(*client, []byte) {}, sweepEvery + time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGated()
				s := &hookedStore{store: newMemory(8 << 20)}
				var on atomic.Bool
				x.hook(s, g.onlyOf("slow", &on))
				e := newExport(s, "/", false)
				c := local(e)
				root := c.mount(t, "/")
				c.write(t, c.create(t, root, "slow"), 0, []byte("text"), 0)
				on.Store(true)
				x.meet(&client{do: c.do}, root)
				time.Sleep(x.after)
				synctest.Wait()
				for i := range 3 * maxKept { // each call returns: otherwise the bubble is deadlocked
					c.write(t, c.create(t, root, fmt.Sprint(i)), 0, []byte("text"), 0)
				}
				synctest.Wait()
				if g.inside.Load() != 1 {
					t.Errorf("%d calls wait for the slow file", g.inside.Load())
				}
				if n := openFiles(e); n > maxKept+1 {
					t.Errorf("%d files are open", n)
				}
				close(g.release)
				synctest.Wait()
				ok(t, e.close())
			})
		})
	}
}

// TestCloseIsBounded: a disk that does not answer does not keep the server from ending.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		e := newExport(&hookedStore{store: newMemory(1 << 20), remove: g.hook}, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		c.create(t, root, "file")
		ctx, lost := context.WithCancel(t.Context())
		go from(ctx, e, "10.0.0.9", callOf(1, programNFS, version3, procRemove, root, "file"))
		<-g.entered
		lost()
		start := time.Now()
		if err := e.close(); err == nil || time.Since(start) != closeLimit {
			t.Errorf("%v, after %v", err, time.Since(start))
		}
		close(g.release)
		synctest.Wait()
	})
}

// TestAbandonedTruncation: a client is lost while its CREATE, or SETATTR, that empties a file waits
// for the disk. What others write later is not lost.
func TestAbandonedTruncation(t *testing.T) {
	for name, call := range map[string]func(root, file []byte) []byte{
		"SETATTR": func(_, file []byte) []byte {
			return callOf(1, programNFS, version3, procSetattr, join([]any{file}, sattrOf(-1, 0), []any{0})...)
		},
		"CREATE": func(root, _ []byte) []byte {
			return callOf(1, programNFS, version3, procCreate, join([]any{root, "file", 0}, sattrOf(-1, 0))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGated()
				e := newExport(&hookedStore{store: newMemory(1 << 20), truncate: g.hook}, "/", false)
				c := local(e)
				root := c.mount(t, "/")
				file := c.create(t, root, "file")
				c.write(t, file, 0, []byte("old data"), 0)
				ctx, lost := context.WithCancel(t.Context())
				go from(ctx, e, "10.0.0.9", call(root, file))
				<-g.entered
				lost()
				written := make(chan []byte, 1)
				go func() {
					written <- from(t.Context(), e, "10.0.0.10", callOf(2, programNFS, version3, procWrite, file, uint64(0), 3, 2, "new"))
				}()
				synctest.Wait()
				if len(written) != 0 {
					t.Error("the WRITE does not wait")
				}
				close(g.release)
				if s := statusIn(t, <-written); s != nfsOK {
					t.Errorf("the WRITE: %d", s)
				}
				synctest.Wait()
				if got, _ := c.read(t, file, 0, 100); string(got) != "new" {
					t.Errorf("%q", got)
				}
				ok(t, e.close())
			})
		})
	}
}
