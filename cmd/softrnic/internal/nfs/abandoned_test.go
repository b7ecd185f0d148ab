package nfs

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/tests/stacktest"
)

// gated is a hook that blocks until it is released.
type gated struct {
	entered chan struct{} // has a value for each call
	release chan struct{} // closed: calls go on
	inside  atomic.Int32
	calls   atomic.Int32
}

func newGated() *gated {
	return &gated{entered: make(chan struct{}, 1<<16), release: make(chan struct{})}
}

func (g *gated) hook(string) error {
	g.calls.Add(1)
	g.inside.Add(1)
	defer g.inside.Add(-1)
	g.entered <- struct{}{}
	<-g.release
	return nil
}

// withStamp returns a call with credentials of AUTH_SYS that have a stamp.
func withStamp(call []byte, stamp uint32) []byte {
	const flavor = 24
	credentials := words(nil, 1, 20, stamp, 0, 0, 0, 0) // without a machine name, uid 0, gid 0
	return append(append(bytes.Clone(call[:flavor]), credentials...), call[flavor+8:]...)
}

// TestRepeatedWhileRunning: a connection ends while its REMOVE waits for the disk. The client
// repeats the call on new connections: it is executed once, and each repetition has its reply.
func TestRepeatedWhileRunning(t *testing.T) {
	g := newGated()
	e := exported(t, &hookedStore{store: newMemory(1 << 20), remove: g.hook}, false)
	c := local(e)
	root := c.mount(t, "/")
	c.create(t, root, "file")
	remove := callOf(4711, programNFS, version3, procRemove, root, "file")
	const client = "10.0.0.9"
	ctx, lost := context.WithCancel(t.Context())
	first := make(chan []byte)
	go func() { first <- from(ctx, e, client, withStamp(remove, 1)) }()
	<-g.entered
	lost()
	if reply := <-first; reply != nil {
		t.Errorf("a connection that has ended has the reply %x", reply)
	}
	again := make(chan []byte, 3)
	for i := range uint32(3) {
		go func() { again <- from(t.Context(), e, client, withStamp(remove, i)) }() // Linux may renew the credentials
	}
	stacktest.AwaitWaiting(t, "nfs.(*repeated).do", "select")
	select {
	case reply := <-again:
		t.Errorf("while the call runs, its repetition has the reply %x", reply)
		again <- reply
	default:
	}
	close(g.release)
	for range 3 {
		if s := statusIn(t, <-again); s != nfsOK {
			t.Errorf("the repetition of a REMOVE that has succeeded: %d", s)
		}
	}
	if s := statusIn(t, from(t.Context(), e, client, remove)); s != nfsOK || g.calls.Load() != 1 {
		t.Errorf("afterwards: %d, executed %d times", s, g.calls.Load())
	}
	if s := statusIn(t, from(t.Context(), e, "10.0.0.10", remove)); s != nfsNoent {
		t.Errorf("the same call of another client: %d", s)
	}
}

// TestAbandonedWrite: a WRITE still waits for the disk when its client is lost. It does not replace
// what another client writes later to the same bytes, nor extend what that one truncates.
func TestAbandonedWrite(t *testing.T) {
	const size = 4096
	later := func(data byte) []byte { return bytes.Repeat([]byte{data}, size) }
	for name, x := range map[string]struct {
		call  func(file []byte) []byte
		waits bool
		want  []byte
	}{
		"the same bytes": {func(file []byte) []byte {
			return callOf(1, programNFS, version3, procWrite, file, uint64(0), size, 2, later('b'))
		}, true, later('b')},
		"the last byte": {func(file []byte) []byte {
			return callOf(1, programNFS, version3, procWrite, file, uint64(size-1), 1, 2, "b")
		}, true, append(later('a')[1:], 'b')},
		"truncation": {func(file []byte) []byte {
			return callOf(1, programNFS, version3, procSetattr, file, 0, 0, 0, 1, uint64(3), 0, 0, 0)
		}, true, []byte("aaa")},
		"other bytes": {func(file []byte) []byte {
			return callOf(1, programNFS, version3, procWrite, file, uint64(size), 1, 2, "b")
		}, false, append(later('a'), 'b')},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGated()
			var first atomic.Bool
			e := exported(t, &hookedStore{store: newMemory(1 << 20), write: func(string, int64) error {
				if first.CompareAndSwap(false, true) {
					return g.hook("")
				}
				return nil
			}}, false)
			c := local(e)
			file := c.create(t, c.mount(t, "/"), "file")
			ctx, lost := context.WithCancel(t.Context())
			ended := make(chan []byte)
			go func() {
				ended <- from(ctx, e, "10.0.0.9", callOf(1, programNFS, version3, procWrite, file, uint64(0), size, 0, later('a')))
			}()
			<-g.entered
			lost()
			<-ended
			reply := make(chan []byte, 1)
			go func() { reply <- from(t.Context(), e, "10.0.0.10", x.call(file)) }()
			if x.waits {
				stacktest.AwaitWaiting(t, "nfs.(*ranges).enter", "select")
				close(g.release)
			} else {
				defer close(g.release)
			}
			if s := statusIn(t, <-reply); s != nfsOK {
				t.Errorf("status %d", s)
			}
			if !x.waits {
				return
			}
			if got, _ := c.read(t, file, 0, 2*size); !bytes.Equal(got, x.want) {
				t.Errorf("the file has %d bytes, %.20q…", len(got), got)
			}
		})
	}
}

// TestRepeatedWrite: the repetition of a WRITE that has ended does not replace newer data.
func TestRepeatedWrite(t *testing.T) {
	e := exported(t, newMemory(1<<20), false)
	c := local(e)
	file := c.create(t, c.mount(t, "/"), "file")
	write := callOf(4711, programNFS, version3, procWrite, file, uint64(0), 3, 0, "old")
	first := from(t.Context(), e, "10.0.0.9", write)
	c.write(t, file, 0, []byte("new"), 2)
	if again := from(t.Context(), e, "10.0.0.9", write); !bytes.Equal(again, first) {
		t.Errorf("the replies are %x and %x", first, again)
	}
	if got, _ := c.read(t, file, 0, 10); string(got) != "new" {
		t.Errorf("the file has %q", got)
	}
	// A COMMIT syncs again: its old reply could be wrong after another WRITE.
	commit := callOf(4712, programNFS, version3, procCommit, file, uint64(0), 0)
	from(t.Context(), e, "10.0.0.9", commit)
	e.newVerifier()
	x := &xdr{b: from(t.Context(), e, "10.0.0.9", commit), off: resultOffset + 4, ok: true}
	x.wcc()
	if v := x.uint64(); v != e.verifier.Load() {
		t.Errorf("the repetition of a COMMIT that has ended has the verifier %#x", v)
	}
}

// TestAbandonedCalls: a client calls and goes away, again and again, while the disk does not
// answer. A bounded number of its calls is inside the store, and others are served. Calls that had
// not begun are not executed.
func TestAbandonedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated()
		e := newExport(&hookedStore{store: newMemory(1 << 20), remove: g.hook}, "/", false)
		c := local(e)
		root := c.mount(t, "/")
		file := c.create(t, root, "file")
		const calls = 500
		for i := range 2 * calls {
			c.create(t, root, fmt.Sprint(i))
		}
		ctx, lost := context.WithCancel(t.Context())
		replies := make(chan []byte, 2*calls)
		call := func(ctx context.Context, i int, client string) {
			replies <- from(ctx, e, client, callOf(uint32(i), programNFS, version3, procRemove, root, fmt.Sprint(i)))
		}
		for i := range calls {
			go call(ctx, i, "10.0.0.9")
		}
		synctest.Wait()
		if n := g.inside.Load(); n != maxWorkersOfPeer {
			t.Errorf("%d calls of a client are inside the store", n)
		}
		c.getattr(t, file) // of another client
		lost()
		synctest.Wait()
		if len(replies) != calls {
			t.Errorf("%d of %d calls have returned after the connection's end", len(replies), calls)
		}
		for i := range calls { // of other clients, whose connections last
			go call(t.Context(), calls+i, fmt.Sprint("10.0.1.", i%100))
		}
		synctest.Wait()
		if n := g.inside.Load(); n != maxWorkers {
			t.Errorf("%d calls are inside the store", n)
		}
		close(g.release)
		synctest.Wait()
		if n := g.calls.Load(); n != maxWorkersOfPeer+calls || len(replies) != 2*calls {
			t.Errorf("%d calls were executed, and %d have returned", n, len(replies))
		}
		if len(e.workers.peers) != 0 || len(e.ranges.files) != 0 {
			t.Errorf("left: %d clients, %d files", len(e.workers.peers), len(e.ranges.files))
		}
		ok(t, e.close())
	})
}

// TestRepliesAreBounded: a client that makes many calls does not push out the replies of others,
// and many clients do not have more than a certain number.
func TestRepliesAreBounded(t *testing.T) {
	e := exported(t, newMemory(1<<20), false)
	c := local(e)
	root := c.mount(t, "/")
	c.create(t, root, "file")
	remove := callOf(1, programNFS, version3, procRemove, root, "file")
	from(t.Context(), e, "10.0.0.9", remove)
	call := func(i int, client string) {
		from(t.Context(), e, client, callOf(uint32(i), programNFS, version3, procRemove, root, "nothing"))
	}
	for i := range 2 * maxRepliesOfPeer {
		call(i, "10.0.0.10")
	}
	if n := e.repeated.all.Len(); n > maxRepliesOfPeer+2 {
		t.Errorf("%d replies are kept for a client", n)
	}
	if s := statusIn(t, from(t.Context(), e, "10.0.0.9", remove)); s != nfsOK {
		t.Errorf("the repetition after another client's calls: %d", s)
	}
	for i := range maxReplies {
		call(i, fmt.Sprintf("10.0.%d.%d", 1+i%32, i%8))
	}
	if n := len(e.repeated.calls); n != maxReplies || e.repeated.all.Len() != n {
		t.Errorf("%d replies are kept in all, and %d in the list", n, e.repeated.all.Len())
	}
}
