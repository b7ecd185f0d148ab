package netstack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestMain runs more parallel tests than there are processors, because they wait for timers of TCP.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// lane has two hosts, and a listener on the second.
type lane struct {
	t        *testing.T
	a, b     *netstack.Host
	listener net.Listener
}

func newLane(t *testing.T, cfg *netstack.Config) *lane {
	t.Helper()
	lan := new(pipe.Switch)
	l := &lane{t: t,
		a: newHost(t, lan.Port(), at(cfg, "10.0.0.1/24")),
		b: newHost(t, lan.Port(), at(cfg, "10.0.0.2/24")),
	}
	l.listen()
	return l
}

func (l *lane) listen() {
	l.t.Helper()
	var err error
	if l.listener, err = l.b.ListenStream(netip.MustParseAddrPort("10.0.0.2:7471")); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.listener.Close() })
}

// dial connects a, from a given or any port, within a second.
func (l *lane) dial(port uint16) (a, b stack.Stream) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	defer cancel()
	a, err := l.a.DialStream(ctx, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), netip.MustParseAddrPort("10.0.0.2:7471"))
	if err != nil {
		l.t.Fatal(err)
	}
	return a, l.accept()
}

func (l *lane) accept() stack.Stream {
	l.t.Helper()
	c, err := l.listener.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	return c.(stack.Stream)
}

// closeBoth ends a connection in order.
func closeBoth(t *testing.T, first, second stack.Stream) {
	t.Helper()
	if err := first.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := second.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("%d bytes, %v", n, err)
	}
	second.Close()
	if n, err := first.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("%d bytes, %v", n, err)
	}
	first.Close()
}

// transfer sends n bytes. It is faster than the clock that chooses initial sequence numbers.
func transfer(t *testing.T, from, to stack.Stream, n int) {
	t.Helper()
	go func() {
		b := make([]byte, n)
		_, _ = from.Write(b) // the reader checks the result
	}()
	if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// TestRedialReplacesTimeWait checks that a new connection on the addresses and ports of an ended
// one replaces its TIME-WAIT, on either side.
func TestRedialReplacesTimeWait(t *testing.T) {
	if testing.Short() {
		t.Skip("it moves more than 64 MiB")
	}
	t.Parallel()
	for name, first := range map[string]func(a, b stack.Stream) (first, second stack.Stream){
		"the server closes first": func(a, b stack.Stream) (_, _ stack.Stream) { return b, a },
		"the client closes first": func(a, b stack.Stream) (_, _ stack.Stream) { return a, b },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLane(t, nil)
			for range 3 {
				a, b := l.dial(4000)
				transfer(t, a, b, 16<<20)
				transfer(t, b, a, 1<<20)
				x, y := first(a, b)
				closeBoth(t, x, y)
			}
			wantMemory(t, 0, l.a, l.b)
		})
	}
}

// TestRedialWaitsForUnreadData checks that unread data is kept when a new connection requests the
// same ports, which it gets when the stream is closed.
func TestRedialWaitsForUnreadData(t *testing.T) {
	t.Parallel()
	l := newLane(t, nil)
	a, b := l.dial(4000)
	transfer(t, a, b, 16<<20)
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	const last = "the last words"
	if _, err := a.Write([]byte(last)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}
	a.Close()
	arrived, once := make(chan struct{}), sync.Once{}
	l.b.NICs()[0].Frames().Steer(&stack.Steering{Take: func(frame []byte) bool {
		if from, _, ok := ofSYN(frame); ok && from == 4000 {
			once.Do(func() { close(arrived) })
		}
		return false
	}})
	type dialled struct {
		s   stack.Stream
		err error
	}
	redial := make(chan dialled, 1)
	go func() {
		// After a second the SYN would be retransmitted.
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		s, err := l.a.DialStream(ctx, netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:7471"))
		redial <- dialled{s, err}
	}()
	<-arrived
	x, y := l.dial(0) // a later connection is open by now
	x.Abort()
	y.Abort()
	select {
	case d := <-redial:
		t.Fatalf("the new connection opened before the old stream was closed (error %v)", d.err)
	default:
	}
	got, err := io.ReadAll(b)
	if string(got) != last || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	b.Close()
	if d := <-redial; d.err != nil {
		t.Error(d.err)
	} else {
		d.s.Abort()
		l.accept().Abort()
	}
}

// ofSYN returns the ports of a SYN of TCP over IPv4, and whether a frame is one.
func ofSYN(frame []byte) (from, to uint16, ok bool) {
	const ip, tcp = 14, 14 + 20
	if frame[12] != 8 || frame[13] != 0 || frame[ip+9] != 6 || frame[tcp+13] != 2 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(frame[tcp:]), binary.BigEndian.Uint16(frame[tcp+2:]), true
}

// TestStreamPortInUse checks that no second connection gets the addresses and ports of an open one.
func TestStreamPortInUse(t *testing.T) {
	t.Parallel()
	l := newLane(t, nil)
	a, b := l.dial(4000)
	from, to := netip.MustParseAddrPort("10.0.0.1:4000"), netip.MustParseAddrPort("10.0.0.2:7471")
	if _, err := l.a.DialStream(t.Context(), from, to); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second connection: %v", err)
	}
	transfer(t, a, b, 1)
	transfer(t, b, a, 1)
	// Nor those of a closed one that has not ended: b does not close.
	a.Close()
	if _, err := l.a.DialStream(t.Context(), from, to); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a connection while the last one lingers: %v", err)
	}
	b.Close()
}

// TestEphemeralPortsAreDrawnAgain checks that the host finds a port for each new connection, with
// any number in TIME-WAIT. It also finds one for each new listener while ports without a listener
// are left.
func TestEphemeralPortsAreDrawnAgain(t *testing.T) {
	t.Parallel()
	l := newLane(t, nil)
	const ports = 65535 - 61000 + 1
	for i := range ports + 100 {
		a, b := l.dial(0)
		closeBoth(t, a, b)
		if i%500 == 0 {
			s, err := l.a.ListenStream(netip.AddrPort{})
			if err != nil {
				t.Fatal(err)
			}
			s.Close()
		}
	}
	var last error
	n := 0
	for ; last == nil && n <= ports; n++ {
		s, err := l.a.ListenStream(netip.AddrPort{})
		if last = err; err == nil {
			defer s.Close()
		}
	}
	if n <= ports || !errors.Is(last, syscall.EADDRINUSE) {
		t.Errorf("%d listeners, then %v; want one for each of %d ports, then EADDRINUSE", n-1, last, ports)
	}
}

// TestStreamLinger checks that a closed connection whose peer does not read is reset after the
// linger time.
func TestStreamLinger(t *testing.T) {
	l := newLane(t, &netstack.Config{TCP: netstack.TCPConfig{Linger: 200 * time.Millisecond, UserTimeout: -1, KeepAliveIdle: -1}})
	resets := make(chan struct{}, 100)
	l.a.NICs()[0].Frames().Steer(&stack.Steering{Take: func(frame []byte) bool {
		if rst := frame[12] == 8 && frame[13] == 0 && frame[14+9] == 6 && frame[14+20+13]&4 != 0; rst {
			resets <- struct{}{}
		}
		return false
	}})
	before := heap()
	const conns = 4
	var peers []stack.Stream
	var writes sync.WaitGroup
	for range conns {
		a, b := l.dial(0)
		peers = append(peers, a)
		writes.Go(func() {
			_ = b.SetWriteDeadline(time.Now().Add(time.Second))
			if _, err := b.Write(make([]byte, 64<<20)); err == nil {
				t.Error("64 MB fitted into the buffers of two ends")
			}
			b.Close()
		})
	}
	writes.Wait()
	held := heap() - before
	if held < conns<<20 {
		t.Fatalf("the heap grew by %d bytes: nothing is held that could be freed", held)
	}
	for range conns {
		select {
		case <-resets:
		case <-time.After(20 * time.Second):
			t.Fatal("no reset for a peer that does not read")
		}
	}
	for _, a := range peers {
		a.Abort()
	}
	give := time.Now().Add(20 * time.Second)
	// Ending goroutines may hold some memory briefly.
	for left := heap() - before; left > held/8; left = heap() - before {
		if time.Now().After(give) {
			t.Fatalf("the heap grew by %d bytes, and is still %d bytes larger", held, left)
		}
	}
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	runtime.GC() // for the contents of pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestStreamTimeWaits checks that connections in TIME-WAIT are bounded in number, and keep nothing
// of their streams.
func TestStreamTimeWaits(t *testing.T) {
	const conns = 1000
	// grown returns the growth of the heap once it is down to most, or after ten seconds.
	grown := func(most int, cfg *netstack.Config) int {
		l := newLane(t, cfg)
		before := heap()
		for range conns {
			a, b := l.dial(0)
			user := make([]byte, 64<<10)
			a.OnRoom(func() { user[0]++ })
			closeBoth(t, a, b)
		}
		n := heap() - before
		for end := time.Now().Add(10 * time.Second); n > most && time.Now().Before(end); {
			n = heap() - before // the last ports are kept for a tick
		}
		return n
	}
	if most := conns * 8 << 10; grown(most, nil) > most {
		t.Error("more than 8 KiB for each connection in TIME-WAIT")
	}
	if most := conns << 10; grown(most, &netstack.Config{TCP: netstack.TCPConfig{TimeWaits: 10}}) > most {
		t.Errorf("more than %d bytes for %d connections, of which 10 may be in TIME-WAIT", most, conns)
	}
}

// segments is a link that counts the TCP segments from one port, and reports those from another.
type segments struct {
	link.Link
	counted, reported uint16 // ports
	n                 atomic.Int64
	sent              chan struct{}
}

func (l *segments) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		const ip, tcp = 14, 14 + 20
		b := frames[i].Data
		if len(b) < tcp+20 || b[12] != 8 || b[13] != 0 || b[ip+9] != 6 {
			continue
		}
		switch binary.BigEndian.Uint16(b[tcp:]) {
		case l.counted:
			l.n.Add(1)
		case l.reported:
			select {
			case l.sent <- struct{}{}:
			default:
			}
		}
	}
	return l.Link.Write(frames)
}

// TestNoKeepAliveInTimeWait checks that a connection in TIME-WAIT sends no keepalive probes, while
// an open one of the same host sends many.
func TestNoKeepAliveInTimeWait(t *testing.T) {
	t.Parallel()
	lan := new(pipe.Switch)
	w := &segments{Link: lan.Port(), counted: 4000, reported: 4001, sent: make(chan struct{}, 1)}
	l := &lane{t: t,
		a: newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"},
			TCP: netstack.TCPConfig{KeepAliveIdle: 20 * time.Millisecond, KeepAliveInterval: 20 * time.Millisecond, KeepAliveCount: 1000}}),
		b: newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}}),
	}
	l.listen()
	x, y := l.dial(4000)
	closeBoth(t, x, y)
	before := w.n.Load()
	open, peer := l.dial(4001)
	for range 8 { // two or three segments of the handshake, and at least five probes
		select {
		case <-w.sent:
		case <-time.After(10 * time.Second):
			t.Fatal("no probes on an open connection")
		}
	}
	if n := w.n.Load() - before; n > 1 { // possibly the last acknowledgement
		t.Errorf("%d segments in TIME-WAIT", n)
	}
	open.Abort()
	peer.Abort()
}

// TestSYNInTimeWaitDoesNotBlock sends a SYN to a connection in TIME-WAIT. Meanwhile another
// goroutine holds the connection's lock and requests gVisor's connection table. gVisor holds the
// table's lock when it passes the SYN on. If the SYN waits for the connection's lock, there is a
// deadlock.
func TestSYNInTimeWaitDoesNotBlock(t *testing.T) {
	l := newLane(t, nil)
	a, b := l.dial(4000)
	// b closes first, so that b enters TIME-WAIT, with unread data.
	if err := b.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal(err)
	}
	l.listener.Close()
	a.Close()

	// The SYN is delayed until b is locked. A SYN to another port follows once it has been
	// passed on.
	const next = 7472
	syn, locked, passed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, second sync.Once
	l.b.NICs()[0].Frames().Steer(&stack.Steering{Take: func(frame []byte) bool {
		switch _, to, isSYN := ofSYN(frame); {
		case isSYN && to == next:
			second.Do(func() { close(passed) })
		case isSYN:
			first.Do(func() {
				close(syn)
				<-locked
			})
		}
		return false
	}})
	dial := func(from string, to uint16) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		// There is no listener any more, so this always fails.
		_, _ = l.a.DialStream(ctx, netip.MustParseAddrPort(from), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), to))
	}
	go dial("10.0.0.1:4000", 7471)
	<-syn
	go dial("10.0.0.1:0", next)

	// A failed test would hang while closing the hosts. Only a panic ends the deadlock.
	const deadlock = "deadlock: the SYN waits for the connection in TIME-WAIT, and that for the SYN"
	hung := time.AfterFunc(10*time.Second, func() { panic(deadlock) })
	defer hung.Stop()
	// gVisor calls the consumer with b locked. The dial requests the table to find b's ports.
	if err := b.Receive(consumerFunc(func([]byte) bool {
		close(locked)
		<-passed // never happens if the SYN waits for the lock
		_, err := l.b.DialStream(t.Context(), netip.MustParseAddrPort("10.0.0.2:7471"), netip.MustParseAddrPort("10.0.0.1:4000"))
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a connection with the addresses and ports of b: %v", err)
		}
		return true
	})); err != nil {
		t.Error(err)
	}
	b.Close()
}

type consumerFunc func([]byte) bool

func (f consumerFunc) Consume(b []byte) bool { return f(b) }
