package hub_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// The environment of processes that tests start: their role and their directory.
const (
	roleEnv = "SOFTRNIC_HUB_TEST_ROLE"
	dirEnv  = "SOFTRNIC_HUB_TEST_DIR"
	addrEnv = "SOFTRNIC_HUB_TEST_ADDR"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "hub":
		err := hub.Serve(context.Background(), hub.Config{Directory: os.Getenv(dirEnv), Classifier: numbered{}, Idle: 2 * time.Second,
			Reclaim: 2 * time.Second})
		if err != nil && !errors.Is(err, hub.ErrRunning) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "unsteered":
		if err := serveUnsteered(os.Getenv(dirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "client":
		client()
	case "victim":
		if err := hub.Victim(os.Getenv(dirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// numbered classifies the tests' datagrams. A datagram begins with a kind of target and its number,
// or a service ID. With the bit claims set, a QPN follows that the sender claims as its own.
type numbered struct{}

const claims = 0x80

func (numbered) Leased(stack.Numbers) {}
func (numbered) Died(stack.Numbers)   {}
func (numbered) Classify(b []byte, _ *stack.Datagram) hub.Target {
	if len(b) < 9 {
		return hub.Target{}
	}
	n := binary.BigEndian.Uint64(b[1:])
	return hub.Target{Kind: hub.TargetKind(b[0] &^ claims), Number: uint32(n), Service: n}
}
func (numbered) Verify(b []byte, _ *stack.Datagram) bool      { return false }
func (numbered) Refuse([]byte, *stack.Datagram, hub.SendFunc) {}
func (numbered) Permits(b []byte, own stack.Numbers) bool {
	return len(b) < 17 || b[0]&claims == 0 || own.QPNs.Contains(uint32(binary.BigEndian.Uint64(b[9:])))
}
func (numbered) SendDue(int64, hub.SendFunc) (again int64) { return 0 }

// message returns a datagram of n bytes for a target.
func message(kind hub.TargetKind, number uint64, n int, fill byte) []byte {
	b := bytes.Repeat([]byte{fill}, max(n, 9))
	b[0] = byte(kind)
	binary.BigEndian.PutUint64(b[1:], number)
	return b
}

// directory returns a directory for a hub, with a short path.
func directory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "hub")
}

// starter starts hub processes, and keeps the last one.
type starter struct {
	t    testing.TB
	mu   sync.Mutex
	last *exec.Cmd
	n    int
}

func (s *starter) start(dir string) error {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=hub", dirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = cmd
	s.n++
	go cmd.Wait()
	s.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return nil
}

// kill kills the hub.
func (s *starter) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.last.Process.Kill()
}

// await waits until ok returns true.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// end is a host with its received datagrams.
type end struct {
	t    testing.TB
	host *kernel.Host
	nic  stack.NIC
	port stack.Shared
	got  chan got
	once sync.Once

	mu    sync.Mutex
	stuck chan bool // if not nil, the receiver waits for it
}

type got struct {
	stack.Datagram
	header, payload []byte
}

func join(t testing.TB, dir, addr string, start func(string) error) *end {
	t.Helper()
	return joinLogged(t, dir, addr, start, nil)
}

func joinLogged(t testing.TB, dir, addr string, start func(string) error, log *slog.Logger) *end {
	t.Helper()
	h, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &kernel.Sharing{Directory: dir, Start: start, Logger: log}})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, host: h, nic: h.NICs()[0], got: make(chan got, 1<<14)}
	e.port = e.nic.Datagrams().(stack.Shared)
	e.nic.Datagrams().Receive(func(d *stack.Datagram) {
		e.mu.Lock()
		stuck := e.stuck
		e.mu.Unlock()
		if stuck != nil {
			<-stuck
		}
		for {
			b, ok := d.Next()
			if !ok {
				return
			}
			select {
			case e.got <- got{*d, bytes.Clone(d.Header), bytes.Clone(b)}:
			default:
			}
		}
	})
	t.Cleanup(e.close)
	return e
}

func (e *end) close() { e.once.Do(func() { _ = e.host.Close() }) }

// send sends datagrams from an address to another.
func (e *end) send(src, dst string, messages ...[]byte) (headers [][]byte) {
	e.t.Helper()
	port := e.nic.Datagrams()
	p, err := port.Path(stack.PathAttr{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 50000,
		TrafficClass: 0x20, HopLimit: 9})
	if err != nil {
		e.t.Fatal(err)
	}
	defer p.Close()
	s := port.Sender()
	defer s.Flush()
	for _, m := range messages {
		header, payload := s.Datagram(p, len(m))
		headers = append(headers, bytes.Clone(header))
		copy(payload, m)
	}
	return headers
}

func (e *end) next() got {
	e.t.Helper()
	select {
	case g := <-e.got:
		return g
	case <-time.After(10 * time.Second):
		e.t.Fatal("no datagram arrived")
		return got{}
	}
}

// nothing fails if a datagram has arrived before the one that a peer sends now.
func (e *end) nothing(peer *end, src, dst string, last []byte) {
	e.t.Helper()
	peer.send(src, dst, last)
	if g := e.next(); !bytes.Equal(g.payload, last) {
		e.t.Errorf("%.20x arrived", g.payload)
	}
}

func (e *end) qpn() uint64 { return uint64(e.port.Numbers().QPNs.Base) + 5 }
func (e *end) id() uint64  { return uint64(e.port.Numbers().CommIDs.Base) + 7 }

// TestSharedAddress checks that several hosts at one address each receive the datagrams for their
// numbers and services, unmodified.
func TestSharedAddress(t *testing.T) {
	for _, addr := range []string{"127.31.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			if addr == "::1" {
				stacktest.IPv6Loopback(t)
			}
			dir, s := directory(t), &starter{t: t}
			a, b, c := join(t, dir, addr, s.start), join(t, dir, addr, s.start), join(t, dir, addr, s.start)
			if s.n != 1 {
				t.Errorf("%d hubs were started", s.n)
			}
			if a.qpn() == b.qpn() || a.id() == b.id() || b.qpn() == c.qpn() {
				t.Errorf("the same numbers: %v, %v, %v", a.port.Numbers(), b.port.Numbers(), c.port.Numbers())
			}
			// One superframe, for several of them.
			all := [][]byte{
				message(hub.TargetQPN, a.qpn(), 100, 0), message(hub.TargetQPN, b.qpn(), 100, 1), message(hub.TargetQPN,
					b.qpn()+1, 100, 2),
				message(hub.TargetCommID, c.id(), 100, 3), message(hub.TargetQPN, a.qpn(), 50, 4),
			}
			headers := c.send(addr, addr, all...)
			for i, to := range []*end{a, b, b, c, a} {
				g := to.next()
				if !bytes.Equal(g.payload, all[i]) || !bytes.Equal(g.header, headers[i]) || g.Dst.String() != addr ||
					g.Src.String() != addr || g.TrafficClass != 0x20 || g.HopLimit != 9 {
					t.Errorf("datagram %d: %+v %x, want %x with %x", i, g.Datagram, g.payload, all[i], headers[i])
				}
			}
			// Datagrams to another process are counted, although it is at the same address.
			for e, want := range map[*end]stack.Counters{
				a: {Received: stack.Traffic{Packets: 2}}, b: {Received: stack.Traffic{Packets: 2}},
				c: {Sent: stack.Traffic{Packets: 5}, Received: stack.Traffic{Packets: 1}},
			} {
				n := e.nic.Counters()
				if n.Sent.Packets != want.Sent.Packets || n.Received.Packets != want.Received.Packets ||
					n.Sent.Bytes < 50*n.Sent.Packets || n.Received.Bytes < 50*n.Received.Packets {
					t.Errorf("a host counts %+v sent, %+v received, want %d and %d packets", n.Sent, n.Received, want.Sent.Packets,
						want.Received.Packets)
				}
			}
			// Services.
			service := stack.Service{ID: 0x1000, Mask: ^uint64(0xff)}
			if err := a.port.Serve(service); err != nil {
				t.Fatal(err)
			}
			oneAddr := stack.Service{Addr: netip.MustParseAddr(addr), ID: 0x1000, Mask: ^uint64(0)}
			for _, taken := range []stack.Service{{ID: 0x1012, Mask: ^uint64(0)}, service, {Mask: 0}, oneAddr} {
				if err := b.port.Serve(taken); !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Errorf("service %+v, which another has: %v", taken, err)
				}
			}
			// A second registration of one's own is allowed.
			if err := a.port.Serve(service); err != nil {
				t.Error(err)
			}
			c.send(addr, addr, message(hub.TargetService, 0x1034, 64, 0), message(hub.TargetService, 0x1134, 64, 0))
			if g := a.next(); g.payload[8] != 0x34 {
				t.Errorf("%x arrived", g.payload)
			}
			a.port.EndServe(service)
			if err := b.port.Serve(service); !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("a service that was served twice, and ended once: %v", err)
			}
			a.port.EndServe(service)
			c.send(addr, addr, message(hub.TargetService, 0x1035, 64, 0))
			a.next() // as no other process serves it
			if err := b.port.Serve(service); err != nil {
				t.Error(err)
			}
			c.send(addr, addr, message(hub.TargetService, 0x1036, 64, 0))
			b.next()
			// All addresses of IPv4, and all of IPv6.
			family := map[bool]netip.Addr{true: netip.IPv4Unspecified(), false: netip.IPv6Unspecified()}
			own, other := service, service
			own.ID, other.ID = 0x2000, 0x2000
			own.Addr, other.Addr = family[oneAddr.Addr.Is4()], family[!oneAddr.Addr.Is4()]
			if err := errors.Join(a.port.Serve(other), b.port.Serve(own)); err != nil {
				t.Errorf("services of two families: %v", err)
			}
			// An address whose service excludes those at all addresses of the other family.
			alone := stack.Service{Addr: oneAddr.Addr, ID: 0x2002, Mask: ^uint64(0)}
			if err := b.port.Serve(alone); err != nil {
				t.Errorf("service %+v beside one of the other family: %v", alone, err)
			}
			alone.BothFamilies = true
			if err := b.port.Serve(alone); !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("service %+v, which another has: %v", alone, err)
			}
			own.ID, oneAddr.ID = 0x2000, 0x2001
			for _, taken := range []stack.Service{own, oneAddr, {ID: 0x2000, Mask: ^uint64(0)}} {
				if err := a.port.Serve(taken); !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Errorf("service %+v, which another has: %v", taken, err)
				}
			}
			c.send(addr, addr, message(hub.TargetService, 0x2034, 64, 0))
			b.next()
			for _, e := range []*end{a, b, c} {
				e.nothing(c, addr, addr, message(hub.TargetQPN, e.qpn(), 64, 1))
			}
		})
	}
}

// TestForged checks that datagrams from the hub's addresses carry the numbers of the sending
// process rather than those that they claim. The hub drops datagrams from unknown processes.
func TestForged(t *testing.T) {
	const addr = "127.31.0.8"
	dir, s := directory(t), &starter{t: t}
	a, b := join(t, dir, addr, s.start), join(t, dir, addr, s.start)
	claim := func(qpn uint64) []byte {
		m := message(hub.TargetQPN|claims, b.qpn(), 64, 0)
		binary.BigEndian.PutUint64(m[9:], qpn)
		return m
	}
	a.send(addr, addr, claim(b.qpn()), claim(a.qpn()), claim(b.qpn()), message(hub.TargetQPN, b.qpn(), 64, 7))
	for _, want := range []byte{claims | byte(hub.TargetQPN), byte(hub.TargetQPN)} {
		if g := b.next(); g.payload[0] != want || g.SrcQPNs != a.port.Numbers().QPNs {
			t.Errorf("%x arrived, from %v", g.payload, g.SrcQPNs)
		}
	}
	a.send(addr, addr, message(hub.TargetCommID, b.id(), 64, 7))
	if g := b.next(); g.SrcQPNs != (stack.Range{}) {
		t.Errorf("a MAD, which the hub has checked, is from %v", g.SrcQPNs)
	}
	unknown, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}, &net.UDPAddr{IP: net.ParseIP(addr), Port: stack.RoCEPort})
	if err != nil {
		t.Fatal(err)
	}
	defer unknown.Close()
	if _, err := unknown.Write(message(hub.TargetQPN, b.qpn(), 64, 0)); err != nil {
		t.Fatal(err)
	}
	b.nothing(a, addr, addr, message(hub.TargetQPN, b.qpn(), 64, 1))

	// Descriptors that are not a client's own UDP sockets.
	c, err := hub.Join(hub.ClientConfig{
		Directory: dir,
		Receiver:  func() func(*hub.Arrival, bool) { return func(*hub.Arrival, bool) {} },
		Changed:   func(bool) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan bool)
	go func() { c.Run(); close(ran) }()
	defer func() { c.Close(); <-ran }()
	raw, err := unknown.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	own := netip.MustParseAddr(addr)
	if err := c.AddSourceSockets(own, raw); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a socket at an address that the client does not have: %v", err)
	}
	if err := c.AddAddr(own, "lo"); err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	other, err := tcp.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.AddSourceSockets(own, other); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a socket of TCP: %v", err)
	}
	if err := c.AddSourceSockets(own, raw, other, raw); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a socket of TCP between two of UDP: %v", err)
	}
	for range 3 { // no answer of several sockets counts for the next request
		if err := c.AddSourceSockets(own, raw); err != nil {
			t.Error(err)
		}
		if err := c.AddSourceSockets(own, other, raw, raw, raw); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a socket of TCP before three of UDP: %v", err)
		}
	}
	if err := c.AddSourceSockets(own, raw, raw); err != nil {
		t.Error(err)
	}
}

// TestPolled checks that datagrams are received on the polling goroutine, and by the client's
// goroutine once polling has stopped.
func TestPolled(t *testing.T) {
	const addr = "127.31.0.2"
	s := &starter{t: t}
	e := join(t, directory(t), addr, s.start)
	polled := 0
	for range 100 {
		e.nic.Poll()
		e.send(addr, addr, message(hub.TargetQPN, e.qpn(), 100, 0))
		for len(e.got) == 0 {
			e.nic.Poll()
		}
		if g := e.next(); g.Polled {
			polled++
		}
	}
	if polled < 20 { // the reader sometimes comes first, more often on a busy machine
		t.Errorf("of 100 datagrams %d were polled", polled)
	}
	e.nic.EndPoll()
	for range 100 {
		e.send(addr, addr, message(hub.TargetQPN, e.qpn(), 100, 0))
		e.next()
	}
}

// TestManyDatagrams checks that no datagram is lost when the ring wraps, as long as the client has
// room.
func TestManyDatagrams(t *testing.T) {
	const addr = "127.31.0.3"
	s := &starter{t: t}
	a := join(t, directory(t), addr, s.start)
	for round := range 60 {
		var all [][]byte
		for i := range 60 {
			all = append(all, message(hub.TargetQPN, a.qpn(), 4096-round*16*(i%2), byte(i)))
		}
		a.send(addr, addr, all...)
		for i := range all {
			if g := a.next(); !bytes.Equal(g.payload, all[i]) {
				t.Fatalf("round %d, datagram %d: %.16x of %d bytes, want %.16x of %d",
					round, i, g.payload, len(g.payload), all[i], len(all[i]))
			}
		}
	}
}

// TestErrors checks the text of errors.
func TestErrors(t *testing.T) {
	const addr = "127.31.0.4"
	dir, s := directory(t), &starter{t: t}
	noStart := kernel.Sharing{Directory: dir}
	if _, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &noStart}); !errors.Is(err, syscall.ENOENT) ||
		!strings.Contains(err.Error(), "softrnic hub") {
		t.Errorf("no hub, and none to start: %v", err)
	}
	alone, err := kernel.New(&kernel.Config{Addrs: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	starting := &kernel.Sharing{Directory: dir, Start: s.start}
	if _, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: starting}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("an address in use by another program: %v", err)
	}
	if err := hub.Serve(t.Context(), hub.Config{Directory: dir, Classifier: numbered{}}); !errors.Is(err, hub.ErrRunning) {
		t.Errorf("a second hub: %v", err)
	}
	open := filepath.Join(t.TempDir(), "x", "hub")
	if err := os.MkdirAll(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hub.Serve(t.Context(), hub.Config{Directory: open, Classifier: numbered{}}); err == nil ||
		!strings.Contains(err.Error(), "others cannot write to") {
		t.Errorf("a directory for others too: %v", err)
	}
	sharing := kernel.Sharing{Directory: open, Start: s.start}
	if _, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &sharing}); err == nil ||
		!strings.Contains(err.Error(), "others cannot write to") {
		t.Errorf("a directory for others too: %v", err)
	}
	if os.Geteuid() != 0 { // only root can create another user's directory
		return
	}
	theirs := directory(t)
	if err := errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	sharing.Directory = theirs
	if _, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &sharing}); err == nil ||
		!strings.Contains(err.Error(), "of user 65534") || !strings.Contains(err.Error(), "use another") {
		t.Errorf("another user's directory: %v", err)
	}
	if err := hub.Serve(t.Context(), hub.Config{Directory: theirs, Classifier: numbered{}}); err == nil ||
		!strings.Contains(err.Error(), "of user 65534") {
		t.Errorf("a hub in another user's directory: %v", err)
	}
}

// TestIdle checks that a hub without clients ends, and releases its lock.
func TestIdle(t *testing.T) {
	dir := directory(t)
	for range 2 {
		if err := hub.Serve(t.Context(), hub.Config{Directory: dir, Classifier: numbered{}, Idle: 10 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	if hub.Running(dir) {
		t.Error("the hub is still running")
	}
}

// TestRemovedDirectory checks that a hub whose directory was removed changes nothing in a new
// directory of the same name when it ends.
func TestRemovedDirectory(t *testing.T) {
	dir := directory(t)
	serve := func() (end func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- hub.Serve(ctx, hub.Config{Directory: dir, Classifier: numbered{}}) }()
		for !hub.Running(dir) {
			select {
			case err := <-ended:
				t.Fatal(err)
			case <-time.After(time.Millisecond):
			}
		}
		return func() {
			t.Helper()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	endFirst := serve()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	endSecond := serve()
	endFirst()
	if !hub.Running(dir) {
		t.Error("a hub whose directory was removed has removed the socket of the next hub")
	}
	endSecond()
	if _, err := os.Stat(filepath.Join(dir, "socket")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a hub has ended, and its socket: %v", err)
	}
}

// client is a process that echoes datagrams for its first QPN to the QPN in them, until it is
// killed. It prints its QPN.
func client() {
	addr := os.Getenv(addrEnv)
	h, err := kernel.New(&kernel.Config{Addrs: []string{addr}, Sharing: &kernel.Sharing{Directory: os.Getenv(dirEnv)}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	port := h.NICs()[0].Datagrams()
	a := netip.MustParseAddr(addr)
	p, err := port.Path(stack.PathAttr{Src: a, Dst: a})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	port.Receive(func(d *stack.Datagram) {
		s := port.Sender()
		defer s.Flush()
		for {
			b, ok := d.Next()
			if !ok {
				return
			}
			_, out := s.Datagram(p, len(b)-8)
			out[0] = byte(hub.TargetQPN)
			copy(out[1:], b[9:]) // the destination
		}
	})
	fmt.Println(port.(stack.Shared).Numbers().QPNs.Base)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// process is a client in a separate process.
type process struct {
	*exec.Cmd
	base uint32
}

func spawn(t testing.TB, dir, addr string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(os.Environ(), roleEnv+"=client", dirEnv+"="+dir, addrEnv+"="+addr)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = p.Process.Kill(); _ = p.Wait() })
	if _, err := fmt.Fscan(out, &p.base); err != nil {
		t.Fatalf("a client prints no QPN: %v", err)
	}
	return p
}

// stop stops a child process, all of its threads.
func stop(t testing.TB, p *os.Process) {
	t.Helper()
	if err := p.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil); err != nil {
		t.Fatal(err)
	}
}

// echo sends n bytes to a client and waits for the answer. It returns false if none arrives.
func (e *end) echo(addr string, p *process, n int, timeout time.Duration) bool {
	m := message(hub.TargetQPN, uint64(p.base), max(n, 32), 9)
	binary.BigEndian.PutUint64(m[9:], e.qpn())
	e.send(addr, addr, m)
	select {
	case <-e.got:
		return true
	case <-time.After(timeout):
		return false
	}
}

// rounds returns n by default, some in the system run, and many in the long run.
func rounds(n, some, many int) int {
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		return many
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		return some
	}
	return n
}

// TestKilledClients checks that a killed client harms no other. Its numbers are not leased again
// soon, and the hub keeps none of its resources.
func TestKilledClients(t *testing.T) {
	const addr = "127.31.0.5"
	dir, s := directory(t), &starter{t: t}
	e := join(t, dir, addr, s.start)
	var others []*process
	for range rounds(2, 3, 16) {
		others = append(others, spawn(t, dir, addr))
	}
	descriptors := func() int {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.last.Process.Pid))
		return len(fds)
	}
	before := 0
	last := map[uint32]int{}
	for i := range rounds(8, 40, 1000) {
		p := spawn(t, dir, addr)
		if at, was := last[p.base]; was && i-at < 200 {
			t.Fatalf("QPNs from %#x are leased again after only %d others", p.base, i-at)
		}
		last[p.base] = i
		if !e.echo(addr, p, 1000, 10*time.Second) {
			t.Fatalf("client %d does not answer", i)
		}
		e.send(addr, addr, message(hub.TargetQPN, uint64(p.base), 1000, 0), message(hub.TargetQPN, uint64(p.base), 1000, 0))
		_ = p.Process.Kill()
		_ = p.Wait()
		for len(e.got) > 0 {
			<-e.got
		}
		if !e.echo(addr, others[i%len(others)], 1000, 10*time.Second) {
			t.Fatalf("another client does not answer after kill %d", i)
		}
		if i == 5 {
			before = descriptors()
		}
	}
	await(t, "the hub keeps no descriptors", func() bool { return descriptors() <= before+1 })
	if s.n != 1 {
		t.Errorf("%d hubs were started", s.n)
	}
}

// TestKilledHub checks that clients of a killed hub see the link go down and up again. They have
// the same numbers and services, at one new hub.
func TestKilledHub(t *testing.T) {
	const addr = "127.31.0.6"
	dir, s := directory(t), &starter{t: t}
	clients := make([]*end, rounds(2, 3, 16))
	for i := range clients {
		clients[i] = join(t, dir, addr, s.start)
		if err := clients[i].port.Serve(stack.Service{ID: uint64(i), Mask: ^uint64(0)}); err != nil {
			t.Fatal(err)
		}
	}
	for range rounds(2, 10, 100) {
		went := make(chan bool, 100)
		for _, c := range clients {
			c.nic.Watch(func(e stack.Change) {
				if e == stack.LinkWentDown {
					went <- true
				}
			})
		}
		s.kill()
		for range clients {
			select {
			case <-went:
			case <-time.After(10 * time.Second):
				t.Fatal("the link did not go down")
			}
		}
		for i, c := range clients {
			await(t, "the link is up again", func() bool { return c.nic.State() == stack.LinkUp })
			for len(c.got) > 0 {
				<-c.got
			}
			c.send(addr, addr, message(hub.TargetQPN, c.qpn(), 100, 1))
			if g := c.next(); g.payload[20] != 1 {
				t.Fatalf("%x arrived", g.payload)
			}
			c.send(addr, addr, message(hub.TargetService, uint64(i), 100, 2))
			if g := c.next(); g.payload[20] != 2 {
				t.Fatalf("%x arrived", g.payload)
			}
		}
	}
	await(t, "one hub is left", func() bool { return hub.Running(dir) })
}

// TestStoppedClient checks that a client that does not read loses datagrams, and delays no other.
func TestStoppedClient(t *testing.T) {
	const addr = "127.31.0.7"
	dir, s := directory(t), &starter{t: t}
	e := join(t, dir, addr, s.start)
	stopped, other := spawn(t, dir, addr), spawn(t, dir, addr)
	stop(t, stopped.Process)
	for range 100 { // more than fits into the ring
		var all [][]byte
		for range 15 {
			all = append(all, message(hub.TargetQPN, uint64(stopped.base), 4096, 0))
		}
		e.send(addr, addr, all...)
	}
	await(t, "another answers", func() bool { return e.echo(addr, other, 1000, 100*time.Millisecond) })
	if err := stopped.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "it answers again", func() bool { return e.echo(addr, stopped, 1000, 100*time.Millisecond) })
}

// TestServeFails checks that a hub that fails to start leaves its addresses to others.
func TestServeFails(t *testing.T) {
	addr := netip.MustParseAddr("127.31.0.17")
	dir := filepath.Join(filepath.Dir(directory(t)), strings.Repeat("h", 120))
	if err := hub.Serve(t.Context(), hub.Config{Directory: dir, Classifier: numbered{}, Addrs: []netip.Addr{addr}}); err == nil {
		t.Fatal("a hub with too long a path started")
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, stack.RoCEPort)))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
