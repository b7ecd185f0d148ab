package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// origin is an NFS server over TCP. It answers calls in any order.
type origin struct {
	net.Listener
	conns   chan net.Conn // that it has accepted
	replies chan []byte   // to its own calls
	ended   chan struct{} // has a value for each connection that has ended
}

// newOrigin starts a server on the machine's loopback.
func newOrigin(t *testing.T, h rpcrdma.Handler) *origin {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	o := &origin{l, make(chan net.Conn, 16), make(chan []byte, 16), make(chan struct{}, 16)}
	var serving sync.WaitGroup
	var open []net.Conn
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				for _, conn := range open {
					conn.Close()
				}
				return
			}
			open = append(open, conn)
			o.conns <- conn
			serving.Go(func() { o.serve(conn, h) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return o
}

func (o *origin) serve(conn net.Conn, h rpcrdma.Handler) {
	in := &recordReader{r: conn, limit: maxRecord}
	client := netip.MustParseAddrPort(conn.RemoteAddr().String())
	var writing sync.Mutex
	for {
		message, err := in.read()
		if err != nil {
			o.ended <- struct{}{}
			return
		}
		if binary.BigEndian.Uint32(message[4:]) != msgCall {
			o.replies <- message
			continue
		}
		go func() {
			reply := h.HandleRPC(context.Background(), &rpcrdma.Call{Message: message, PeerAddr: client})
			writing.Lock()
			defer writing.Unlock()
			_, _ = conn.Write(append(recordMark(reply), reply...))
		}()
	}
}

// dialer connects a client to the forwarder. backward, unless nil, answers calls of the server.
type dialer func(backward rpcrdma.Handler) (*rpcrdma.Client, error)

// overForwarder runs a test with a server, a forwarder to it, and a machine from which to use it.
func overForwarder(t *testing.T, h rpcrdma.Handler, f func(t *testing.T, o *origin, dial dialer)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			o, lan := newOrigin(t, h), new(pipe.Switch)
			s := program.Start(t, lan, "nfs serve --addr 10.0.0.1/24 --forward tcp:"+o.Addr().String())
			s.Await(t, &s.Err, "msg=serving")
			m := newMachine(t, lan, "10.0.0.2/24")
			f(t, o, func(backward rpcrdma.Handler) (*rpcrdma.Client, error) {
				cfg := &rpcrdma.Config{Transport: transport, Binding: rpcrdma.NFS, Backward: backward, BackwardCredits: 4}
				return rpcrdma.Dial(t.Context(), m.dev, "10.0.0.1:20049", cfg)
			})
			s.Stop()
			if code := s.Wait(t); code != cli.ExitOK {
				t.Errorf("exit code %d: %s", code, &s.Err)
			}
		})
	}
}

// TestForward: clients use an export of another server, through its forwarder.
func TestForward(t *testing.T) {
	e := exported(t, newMemory(64<<20), false)
	overForwarder(t, e, func(t *testing.T, o *origin, dial dialer) {
		root := local(e).mount(t, "/")
		var clients sync.WaitGroup
		for i := range 3 {
			rdma, err := dial(nil)
			ok(t, err)
			defer rdma.Close()
			clients.Go(func() {
				c := over(rdma)
				name := strings.Repeat("n", 50+i) + t.Name()[len("TestForward/"):]
				dir := c.mkdir(t, root, name)
				data := bytes.Repeat([]byte{byte(i), 1, 2, 3, 5, 8, 13}, maxTransfer/7)
				for _, n := range []int{0, 1, 1000, 4096, 70_001, len(data)} {
					file := c.create(t, dir, fmt.Sprint(n))
					c.write(t, file, 0, data[:n], 2)
					if got, eof := c.read(t, file, 0, maxTransfer); !bytes.Equal(got, data[:n]) || !eof && n > 0 {
						t.Errorf("%d bytes read of %d", len(got), n)
					}
				}
				target := strings.Repeat("../", 300)
				c.must(t, procSymlink, join([]any{dir, "link"}, noAttributes, []any{target})...)
				x := c.must(t, procReadlink, c.lookup(t, dir, "link"))
				x.postOp()
				if got := string(x.bytes(len(x.b))); got != target {
					t.Errorf("the link is %q", got)
				}
				want := []string{".", ".."}
				for j := range 300 {
					want = append(want, strings.Repeat("x", 20+j%100)+string(rune('a'+j%26))+name[:3])
					c.call(t, programNFS, procCreate, join([]any{dir, want[len(want)-1], 0}, noAttributes)...)
				}
				for _, plus := range []bool{false, true} {
					names := c.list(t, dir, plus, 65536)
					for _, w := range want {
						if !slices.Contains(names, w) {
							t.Errorf("READDIR, plus %v: no %q in %d names", plus, w, len(names))
						}
					}
				}
			})
		}
		clients.Wait()
		if n := len(o.conns); n != 3 {
			t.Errorf("%d connections to the server", n)
		}
	})
}

// TestForwardedAtOnce: replies come to their calls, in whatever order the server sends them.
func TestForwardedAtOnce(t *testing.T) {
	const calls = 100
	last := make(chan struct{}, 1)
	h := rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
		switch binary.BigEndian.Uint32(c.Message) {
		case 0: // is overtaken by the others
			<-last
		case calls - 1:
			last <- struct{}{}
		}
		return append(words(c.Message[:4:4], 1, 0, 0, 0, acceptSuccess), c.Message[40:]...)
	})
	overForwarder(t, h, func(t *testing.T, _ *origin, dial dialer) {
		rdma, err := dial(nil)
		ok(t, err)
		defer rdma.Close()
		if _, err := rdma.Call(t.Context(), callOf(calls, 0x20000000, 1, 1)); err != nil { // its reply grants credits
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range uint32(calls) {
			all.Go(func() {
				call := callOf(i, 0x20000000, 1, 1, strings.Repeat("x", int(i)), int(i))
				if reply, err := rdma.Call(t.Context(), call); err != nil || !bytes.Equal(reply[24:], call[40:]) {
					t.Errorf("call %d: %x, %v", i, reply, err)
				}
			})
		}
		all.Wait()
	})
}

// TestForwardBackward: calls of the server come to the client of the connection, and the replies
// back. The server gets no reply to a call that is too long, and the connections go on.
func TestForwardBackward(t *testing.T) {
	overForwarder(t, exported(t, newMemory(1<<20), false), func(t *testing.T, o *origin, dial dialer) {
		for client := range 2 {
			rdma, err := dial(rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
				return words(c.Message[:4:4], 1, 0, 0, 0, acceptSuccess, uint32(client))
			}))
			ok(t, err)
			defer rdma.Close()
			conn := <-o.conns
			long := callOf(7, 0x40000000, 1, 1, make([]byte, 20_000))
			_, err = conn.Write(append(recordMark(long), long...))
			ok(t, err)
			for xid := range uint32(20) {
				call := callOf(xid, 0x40000000, 1, 1, "callback")
				_, err := conn.Write(append(recordMark(call), call...))
				ok(t, err)
				want := words(nil, xid, 1, 0, 0, 0, acceptSuccess, uint32(client))
				if reply := <-o.replies; !bytes.Equal(reply, want) {
					t.Errorf("the reply is %x, not %x", reply, want)
				}
			}
			if _, err := rdma.Call(t.Context(), callOf(5, programNFS, version3, procNull)); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestForwardTooLong: a client that has no room for a reply gets an error, without the reply being
// read into memory, and the connections go on.
func TestForwardTooLong(t *testing.T) {
	h := rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
		n := int(binary.BigEndian.Uint32(c.Message[40:]))
		return append(words(c.Message[:4:4], 1, 0, 0, 0, acceptSuccess), make([]byte, n)...)
	})
	overForwarder(t, h, func(t *testing.T, _ *origin, dial dialer) {
		rdma, err := dial(nil)
		ok(t, err)
		defer rdma.Close()
		for i, n := range []int{100, maxRecord - 24, 5000, 200} {
			reply, err := rdma.Call(t.Context(), callOf(uint32(i), programNFS, version3, procNull, n))
			var remote *rpcrdma.RemoteError
			if long := n > 4096; long && !errors.As(err, &remote) || !long && (err != nil || len(reply) != 24+n) {
				t.Errorf("%d bytes: %d came, %v", n, len(reply), err)
			}
		}
	})
}

// TestForwardEnds: a connection of a client ends with the one to the server, and the other way
// round. Clients are rejected while there is no server.
func TestForwardEnds(t *testing.T) {
	overForwarder(t, exported(t, newMemory(1<<20), false), func(t *testing.T, o *origin, dial dialer) {
		null := callOf(1, programNFS, version3, procNull)
		for name, end := range map[string]func(net.Conn){
			"closed":            func(c net.Conn) { c.Close() },
			"reset":             func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); c.Close() },
			"too long":          func(c net.Conn) { _, _ = c.Write(words(nil, lastFragment|maxRecord+1)) },
			"no message":        func(c net.Conn) { _, _ = c.Write(words(nil, lastFragment|4, 0)) },
			"many calls":        func(c net.Conn) { manyCalls(c) },
			"an empty fragment": func(c net.Conn) { _, _ = c.Write(words(nil, 0)) },
		} {
			rdma, err := dial(nil)
			ok(t, err)
			if _, err := rdma.Call(t.Context(), null); err != nil {
				t.Error(err)
			}
			end(<-o.conns)
			<-o.ended
			if _, err := rdma.Call(t.Context(), null); err == nil {
				t.Errorf("%s: a call succeeds without the server", name)
			}
			ok(t, rdma.Close())
		}
		rdma, err := dial(nil)
		ok(t, err)
		<-o.conns
		ok(t, rdma.Close())
		<-o.ended
		ok(t, o.Close())
		if rdma, err := dial(nil); err == nil {
			t.Error("a client is accepted without the server")
			ok(t, rdma.Close())
		}
	})
}

// manyCalls sends more calls in the backward direction than may wait.
func manyCalls(c net.Conn) {
	for xid := range uint32(maxBackward + 1) {
		call := callOf(xid, 0x40000000, 1, 1)
		_, _ = c.Write(append(recordMark(call), call...))
	}
}
