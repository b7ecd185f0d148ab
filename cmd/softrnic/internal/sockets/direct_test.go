//go:build linux

package sockets

import (
	"bytes"
	"crypto/rand"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
)

// twoAgents are agents of a client, 10.0.0.1, and of a server, 10.0.0.2.
type twoAgents struct {
	client, server *Agent
	listener       int            // the server's
	at             netip.AddrPort // where it listens
}

// newTwoAgents starts two agents that hand connections over, or only one of them.
func newTwoAgents(t *testing.T, client, server bool) *twoAgents {
	t.Helper()
	lan, err := pipe.New(nil)
	ok(t, err)
	two := &twoAgents{}
	two.client, _, _ = newAgentAt(t, lan, "10.0.0.1/24", Config{Wait: time.Minute, Direct: client})
	two.server, _, _ = newAgentAt(t, lan, "10.0.0.2/24", Config{Wait: time.Minute, Direct: server})
	two.listener = socket(t, unix.SOCK_STREAM)
	ok(t, unix.Bind(two.listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	two.at = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), localOf(two.listener).Port())
	two.server.mu.Lock()
	two.server.bound.put(cookieOf(two.listener), two.at)
	two.server.mu.Unlock()
	two.server.listen(two.listener)
	ok(t, unix.Listen(two.listener, 16))
	return two
}

// connect connects a new socket of the client. end is what replaces it.
func (two *twoAgents) connect(t *testing.T, kind int) (fd, end int) {
	t.Helper()
	fd = socket(t, unix.SOCK_STREAM|kind)
	status, _, end := two.client.do(&request{op: opConnect, name: two.at, socket: fd})
	if status != done {
		t.Fatalf("connect: %d", status)
	}
	if end >= 0 {
		t.Cleanup(func() { _ = unix.Close(end) })
		fd = end
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 20000); err != nil || n != 1 || p[0].Revents != unix.POLLOUT {
		t.Fatalf("it is not writable: %d, %v, %#x", n, err, p[0].Revents)
	}
	ok(t, unix.SetNonblock(fd, false))
	return fd, end
}

// accept accepts a connection as the server. end is what replaces it, or -1.
func (two *twoAgents) accept(t *testing.T) (fd, end int) {
	t.Helper()
	fd, _, err := unix.Accept(two.listener)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	status, from, end := two.server.do(&request{op: opTake, socket: fd})
	if status != done || from.Addr() != netip.MustParseAddr("10.0.0.1") {
		t.Errorf("it comes from %v: %d", from, status)
	}
	return fd, end
}

// exchange sends bytes both ways between two sockets.
func exchange(t *testing.T, a, b int) {
	t.Helper()
	for _, way := range [][2]int{{a, b}, {b, a}} {
		data, got := make([]byte, 10000), []byte{}
		_, _ = rand.Read(data)
		for rest := data; len(rest) > 0; {
			n, err := unix.Write(way[0], rest)
			ok(t, err)
			rest = rest[n:]
		}
		for len(got) < len(data) {
			some := make([]byte, len(data))
			n, err := unix.Read(way[1], some)
			if ok(t, err); n == 0 {
				t.Fatal("it has ended")
			}
			got = append(got, some[:n]...)
		}
		if !bytes.Equal(got, data) {
			t.Fatal("other bytes arrive")
		}
	}
}

func (a *Agent) query(op operation, socket int) (int32, netip.AddrPort) {
	status, name, fd := a.do(&request{op: op, socket: socket})
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return status, name
}

// TestHandOver: two programs get the ends of a pair, and the agents have their addresses until the
// programs have closed them.
func TestHandOver(t *testing.T) {
	two := newTwoAgents(t, true, true)
	for _, kind := range []int{0, unix.SOCK_NONBLOCK} {
		_, client := two.connect(t, kind)
		_, server := two.accept(t)
		if client < 0 || server < 0 {
			t.Fatal("it is not handed over")
		}
		exchange(t, client, server)
		if status, name := two.client.query(opPeer, client); status != done || name != two.at {
			t.Errorf("the client's peer is %v: %d", name, status)
		}
		_, own := two.client.query(opLocal, client)
		if status, name := two.server.query(opPeer, server); status != done || name != own {
			t.Errorf("the server's peer is %v, not %v: %d", name, own, status)
		}
		for again := range 2 { // as TCP, the first connect after a pending one reports that one's result
			want := int32(syscall.EISCONN)
			if kind == unix.SOCK_NONBLOCK && again == 0 {
				want = done
			}
			if status, _ := two.client.query(opConnect, client); status != want {
				t.Errorf("kind %#x, connect again: %d, want %d", kind, status, want)
			}
		}
		// A reset, which TCP reports once.
		if status, _ := two.server.query(opEnd, server); status != done {
			t.Errorf("an end is a reset: %d", status)
		}
		for _, op := range []operation{opAborts, opEnds, opAborts} {
			if status, _ := two.client.query(op, client); status != done {
				t.Errorf("operation %d: %d", op, status)
			}
		}
		for _, want := range []int32{int32(syscall.ECONNRESET), done} {
			if status, _ := two.server.query(opEnd, server); status != want {
				t.Errorf("the end: %d, want %d", status, want)
			}
		}
		ok(t, unix.Shutdown(client, unix.SHUT_RDWR))
		if n, err := unix.Read(server, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("%d bytes after the end, %v", n, err)
		}
		ok(t, unix.Close(server))
		ok(t, unix.Dup3(two.listener, client, unix.O_CLOEXEC)) // closes it
	}
	for _, a := range []*Agent{two.client, two.server} {
		ok(t, waitUntil(func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return len(a.direct) == 0 && len(a.names) == 0 && len(a.takes) == 0 && a.cfg.Counters.Open.Load() == 0
		}))
	}
	ok(t, waitUntil(func() bool { return two.server.Accepted().Held == 0 }))
}

// waitUntil waits until the agents, which look from time to time, have seen something.
func waitUntil(done func() bool) error {
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			return syscall.ETIMEDOUT
		}
	}
	return nil
}

// TestNotTaken: a program that accepts without the library gets its connection relayed, and both
// sides' resets arrive.
func TestNotTaken(t *testing.T) {
	two := newTwoAgents(t, true, true)
	for _, first := range []string{"client", "server"} {
		_, client := two.connect(t, 0)
		server, _, err := unix.Accept(two.listener)
		ok(t, err)
		if first == "server" { // before the time for taking it is over
			exchange(t, server, client)
		} else {
			exchange(t, client, server)
		}
		if status, _, end := two.server.do(&request{op: opTake, socket: server}); status != done || end >= 0 {
			t.Errorf("%d, and the end %d can still be taken", status, end)
		}
		if first == "server" {
			ok(t, unix.SetsockoptLinger(server, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
			ok(t, unix.Close(server))
			if n, _ := unix.Read(client, make([]byte, 1)); n > 0 {
				t.Error("a byte is read after a reset")
			}
			if status, _ := two.client.query(opEnd, client); status != int32(syscall.ECONNRESET) {
				t.Errorf("the client's end: %d", status)
			}
			continue
		}
		if status, _ := two.client.query(opAborts, client); status != done {
			t.Error(status)
		}
		ok(t, unix.Dup3(two.listener, client, unix.O_CLOEXEC))
		if n, err := unix.Read(server, make([]byte, 1)); err != unix.ECONNRESET {
			t.Errorf("%d, %v: no reset", n, err)
		}
		ok(t, unix.Close(server))
	}
}

// TestNotHandedOver: the agents relay as before if one of them does not hand over, or declines.
func TestNotHandedOver(t *testing.T) {
	for _, test := range []struct {
		name           string
		client, server bool
	}{{"the server does not", true, false}, {"the client does not", false, true}, {"the server declines", true, false}} {
		t.Run(test.name, func(t *testing.T) {
			two := newTwoAgents(t, test.client, test.server)
			declines := test.name == "the server declines"
			if declines { // an agent of another network with the same addresses
				l, err := net.ListenUnix("unixpacket", meetingName(two.at))
				ok(t, err)
				defer l.Close()
				go func() {
					for {
						c, err := l.AcceptUnix()
						if err != nil {
							return
						}
						_, _ = c.Write([]byte{welcome})
						if o, err := readOffer(c); err == nil {
							_ = unix.Close(o.end)
						}
						_, _ = c.Write([]byte{refused})
						_ = c.Close()
					}
				}()
			}
			for _, kind := range []int{0, unix.SOCK_NONBLOCK} {
				client, end := two.connect(t, kind)
				// A nonblocking socket has been replaced before the server declines.
				if replaced := declines && kind != 0; replaced != (end >= 0) {
					t.Errorf("kind %#x: the socket is replaced by %d", kind, end)
				}
				server, end := two.accept(t)
				if end >= 0 {
					t.Error("there is an end to take")
				}
				exchange(t, client, server)
			}
		})
	}
}

// TestVisits: hostile visits, of which there are too many, do not keep others from connecting.
func TestVisits(t *testing.T) {
	two := newTwoAgents(t, true, true)
	m := two.server.listeners[two.at].meeting
	visits := func(n int) error {
		return waitUntil(func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.visits) == n
		})
	}
	visit := func() *net.UnixConn {
		c, err := net.DialUnix("unixpacket", nil, meetingName(two.at))
		ok(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for range 10 {
		short, other := visit(), visit()
		_, _ = short.Write([]byte("no offer"))
		_, _, _ = other.WriteMsgUnix(make([]byte, offerLen), unix.UnixRights(two.listener), nil) // no Unix socket
		for _, c := range []*net.UnixConn{short, other} {
			var b [2]byte
			for b[0] != refused {
				n, err := c.Read(b[:])
				if errors.Is(err, unix.ECONNRESET) { // it has not read the offer
					continue
				}
				if ok(t, err); n != 1 {
					t.Fatal("no answer")
				}
			}
		}
	}
	for range maxVisits + 10 {
		visit()
	}
	ok(t, visits(maxVisits))
	for _, kind := range []int{0, unix.SOCK_NONBLOCK} {
		client, _ := two.connect(t, kind)
		server, end := two.accept(t)
		if end >= 0 {
			t.Error("there was room for the visit")
		}
		exchange(t, client, server)
	}
	if two.server.NotDirect() < 10 {
		t.Errorf("%d visits are counted as too many", two.server.NotDirect())
	}
}

// TestForeignVisits: another user's visits are refused, and one who listens where an agent would
// gets no visits, so that no connection is handed over to another user.
func TestForeignVisits(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	two := newTwoAgents(t, true, true)
	at := meetingName(two.at)
	for user, want := range map[int]byte{os.Geteuid(): welcome, 65002: refused} {
		as(t, user, func() {
			c, err := net.DialUnix("unixpacket", nil, at)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			b := make([]byte, 2)
			if n, err := c.Read(b); err != nil || n != 1 || b[0] != want {
				t.Errorf("user %d: %q, %v; want %q", user, b[:max(n, 0)], err, want)
			}
		})
	}
	two = newTwoAgents(t, true, false) // so that the name is free
	at = meetingName(two.at)
	visits := make(chan bool, 16)
	as(t, 65002, func() {
		l, err := net.ListenUnix("unixpacket", at)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.AcceptUnix()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte{welcome})
				o, err := readOffer(c)
				if visits <- err == nil; err == nil {
					_ = unix.Close(o.end)
				}
				_, _ = c.Write([]byte{accepted})
				_ = c.Close()
			}
		}()
	})
	for _, kind := range []int{0, unix.SOCK_NONBLOCK} {
		client, end := two.connect(t, kind)
		if end >= 0 || <-visits {
			t.Fatal("another user is offered a connection")
		}
		server, _ := two.accept(t)
		exchange(t, client, server)
	}
}

// as calls a function as another user. Other goroutines, also those that it starts, are of the
// user of this process.
func as(t *testing.T, user int, f func()) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread() // for good: the thread, and it alone, becomes another user
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
			t.Error(errno)
			return
		}
		f()
	}()
	<-over
}

// FuzzOffer: any packet is read as an offer, or is an error, and no descriptor is left.
func FuzzOffer(f *testing.F) {
	f.Add(make([]byte, offerLen), 1)
	f.Add(make([]byte, offerLen-1), 0)
	f.Add(bytes.Repeat([]byte{4}, offerLen), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		ok(t, err)
		defer closeAll(ends[0])
		sent, err := pair()
		ok(t, err)
		defer closeAll(sent[:]...)
		var fds []int
		for range min(uint(n), 5) {
			fds = append(fds, sent[0])
		}
		if unix.Sendmsg(ends[0], b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT) != nil {
			closeAll(ends[1])
			return
		}
		c, err := unixConn(ends[1])
		ok(t, err)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		o, err := readOffer(c)
		if err == nil {
			closeAll(o.end)
		}
		if valid := len(b) == offerLen && len(fds) == 1; valid != (err == nil) || o.filled < 0 || o.filled > pendingSize {
			t.Errorf("%d bytes, %d descriptors: %v, %+v", len(b), len(fds), err, o)
		}
	})
}
