//go:build linux

package sockets

import (
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"bytes"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBoundPort: a connection over RDMA comes from the address and port to which the program has
// bound its socket, blocking or not, and has the socket's type of service.
func TestBoundPort(t *testing.T) {
	lan, err := pipe.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	a, _, _ := newAgent(t, lan)
	a.cfg.Wait = time.Minute
	dev := otherHost(t, lan, 2)
	l, err := rsocket.Listen(dev, "10.0.0.2:7000", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own := netip.MustParseAddr("10.0.0.1")
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_STREAM | unix.SOCK_NONBLOCK} {
		for _, at := range []netip.Addr{own, netip.IPv4Unspecified()} {
			fd := socket(t, kind)
			set(fd, option{unix.IPPROTO_IP, unix.IP_TOS}, 0x68)
			if at == own {
				if status := a.bind(fd, netip.AddrPortFrom(own, 0)); status != done {
					t.Fatalf("bind: %d", status)
				}
			} else if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
				t.Fatal(err)
			}
			port := localOf(fd).Port()
			if status := a.connect(fd, netip.MustParseAddrPort("10.0.0.2:7000")); status != done {
				t.Fatalf("connect: %d", status)
			}
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if from := parse(c.RemoteAddr()); from != netip.AddrPortFrom(own, port) {
				t.Errorf("bound to %v, port %d: the connection comes from %v", at, port, from)
			}
			set(fd, option{unix.SOL_SOCKET, unix.SO_KEEPALIVE}, 1)
			set(fd, option{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}, 77)
			if cfg := a.dialConfig(netip.AddrPort{}, netip.AddrPortFrom(own, 1), fd); cfg.TOS != 0x68 || cfg.KeepAlive != 77*time.Second {
				t.Errorf("the type of service is %#x, the idle time %v", cfg.TOS, cfg.KeepAlive)
			}
			_ = c.Close()
		}
	}
}

// TestFallbackAsSetUp: if a nonblocking socket gets its connection over TCP, the connection has the
// socket's port and options.
func TestFallbackAsSetUp(t *testing.T) {
	addr, token := startAgent(t)
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd := socket(t, unix.SOCK_STREAM|unix.SOCK_NONBLOCK)
	options := map[option]int{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.SOL_SOCKET, unix.SO_PRIORITY}: 3, {unix.IPPROTO_IP, unix.IP_TTL}: 33,
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 77, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 7, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}: 2,
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 12345, {unix.IPPROTO_TCP, unix.TCP_SYNCNT}: 2,
		{unix.SOL_SOCKET, unix.SO_RCVBUF}: 16384, {unix.SOL_SOCKET, unix.SO_SNDBUF}: 24576,
	}
	for o, v := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.name, v); err != nil {
			t.Fatal(err)
		}
	}
	mss := option{unix.IPPROTO_TCP, unix.TCP_MAXSEG}
	if err := unix.SetsockoptInt(fd, mss.level, mss.name, 600); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound := localOf(fd)
	if got := ask(t, addr, connectTo(token, l.Addr().String()), fd); !bytes.Equal(got, answer(done, netip.AddrPort{})) {
		t.Fatalf("connect: %x", got)
	}
	_ = l.SetDeadline(time.Now().Add(20 * time.Second))
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if from := parse(c.RemoteAddr()); from != bound {
		t.Errorf("the connection comes from %v, and the program's socket is bound to %v", from, bound)
	}
	far := socketBetween(t, parse(c.RemoteAddr()), parse(l.Addr()))
	for o, v := range options {
		if o.level == unix.SOL_SOCKET && (o.name == unix.SO_RCVBUF || o.name == unix.SO_SNDBUF) {
			v *= 2
		}
		if got, err := unix.GetsockoptInt(far, o.level, o.name); err != nil || got != v {
			t.Errorf("option %d of level %d is %d, want %d: %v", o.name, o.level, got, v, err)
		}
	}
	if got, err := unix.GetsockoptInt(far, mss.level, mss.name); err != nil || got > 600 {
		t.Errorf("TCP_MAXSEG is %d: %v", got, err)
	}
	if got, err := unix.GetsockoptString(far, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err != nil || got != "reno" {
		t.Errorf("TCP_CONGESTION is %q: %v", got, err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 20_000); n != 1 || poll[0].Revents != unix.POLLOUT {
		t.Fatalf("the program's socket is not connected: %v, %#x", err, poll[0].Revents)
	}
	if reuse, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || reuse != 0 {
		t.Errorf("SO_REUSEADDR of the program's socket is %d: %v", reuse, err)
	}
}

// socketBetween returns the socket of this process that is connected from one address to another.
func socketBetween(t *testing.T, from, to netip.AddrPort) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if fd, err := strconv.Atoi(f.Name()); err == nil && localOf(fd) == from && peerOf(fd) == to {
			return fd
		}
	}
	t.Fatalf("there is no socket from %v to %v", from, to)
	return -1
}
