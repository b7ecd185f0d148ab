package netstack_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
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

const (
	leastSend    = 128 << 10 // initial buffers of every connection
	leastReceive = 64 << 10
	leastBoth    = leastSend + leastReceive
)

// zeros is shared because gVisor retains the data that was last written.
var zeros [64 << 20]byte

// fillBuffers writes until the buffers of both ends are full: no byte is accepted for a while. It
// returns the number of bytes.
func fillBuffers(t *testing.T, s stack.Stream) (n int) {
	t.Helper()
	for {
		if err := s.SetWriteDeadline(time.Now().Add(150 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		more, err := s.Write(zeros[:])
		if n += more; err == nil {
			t.Error("64 MiB fitted into buffers without a reader")
		}
		if more == 0 || err == nil {
			return n
		}
	}
}

// wantMemory waits until each host's buffers have this many bytes. This is the case when the last
// segments have arrived.
func wantMemory(t *testing.T, want int64, hosts ...*netstack.Host) {
	t.Helper()
	for _, h := range hosts {
		for end := time.Now().Add(10 * time.Second); h.TCPMemoryUsed() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the buffers have %d bytes, want %d", h.TCPMemoryUsed(), want)
			}
		}
	}
}

// TestTCPBuffers checks that a few connections have full buffers, as the option sets them.
func TestTCPBuffers(t *testing.T) {
	for name, tc := range map[string]struct {
		send, receive int64
		opts          *netstack.Config
	}{
		"default":  {send: 4 << 20, receive: 8 << 20},
		"smaller":  {1 << 20, 2 << 20, &netstack.Config{TCP: netstack.TCPConfig{SendBuffer: 1 << 20, RecvBuffer: 2 << 20}}},
		"larger":   {8 << 20, 16 << 20, &netstack.Config{TCP: netstack.TCPConfig{SendBuffer: 8 << 20, RecvBuffer: 16 << 20}}},
		"smallest": {leastSend, leastReceive, &netstack.Config{TCP: netstack.TCPConfig{SendBuffer: leastSend, RecvBuffer: leastReceive}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lan := new(pipe.Switch)
			server := &windowed{Link: lan.Port()}
			l := &lane{t: t,
				a: newHost(t, lan.Port(), at(tc.opts, "10.0.0.1/24")),
				b: newHost(t, server, at(tc.opts, "10.0.0.2/24")),
			}
			l.listen()
			var streams []stack.Stream
			for range 3 {
				a, b := l.dial(0)
				streams = append(streams, a, b)
				pass(t, a, b)
				pass(t, b, a)
				if n := server.largest.Load(); n < tc.receive/2-64<<10 || n > tc.receive/2 {
					t.Errorf("a window of %d bytes with a receive buffer of %d", n, tc.receive)
				}
				if n := int64(fillBuffers(t, a)); n < tc.send || n > tc.send+tc.receive/2 {
					t.Errorf("%d bytes went into buffers of %d and %d", n, tc.send, tc.receive)
				}
			}
			if n := l.a.TCPMemoryUsed(); n != 3*(tc.send+tc.receive) {
				t.Errorf("the buffers of 3 connections have %d bytes", n)
			}
			for _, s := range streams {
				s.Abort()
			}
			wantMemory(t, 0, l.a, l.b)
		})
	}
}

// TestTCPMemory checks that the buffers of any number of connections, whose peers do not read, stay
// within the memory. All get some data through. Connections without memory are refused until others
// end.
func TestTCPMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it moves more than 64 MiB")
	}
	t.Parallel()
	const conns, memory, peersMemory = 16, 6 << 20, 16 << 20
	lan := new(pipe.Switch)
	l := &lane{t: t,
		a: newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}, TCP: netstack.TCPConfig{Memory: memory}}),
		b: newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}, TCP: netstack.TCPConfig{Memory: peersMemory}}),
	}
	l.listen()
	var streams []stack.Stream
	var sum atomic.Int64
	var fills sync.WaitGroup
	for range conns {
		a, b := l.dial(0)
		streams = append(streams, a, b)
	}
	for i := range conns {
		transfer(t, streams[2*i], streams[2*i+1], 4<<20) // buffers grow
	}
	for i := range conns {
		fills.Go(func() {
			n := fillBuffers(t, streams[2*i])
			if n < leastSend {
				t.Errorf("%d bytes went into a connection's buffers", n)
			}
			sum.Add(int64(n))
		})
	}
	fills.Wait()
	if n := sum.Load(); n > (memory+peersMemory)*3/4 {
		t.Errorf("%d bytes went into the buffers of two hosts with memory of %d and %d", n, memory, peersMemory)
	}
	if n := l.a.TCPMemoryUsed(); n > memory*3/4 {
		t.Errorf("the buffers have %d bytes of %d, of which a quarter is for new connections", n, memory)
	}
	for {
		a, err := l.a.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7471"))
		if err != nil {
			if !errors.Is(err, syscall.ENOBUFS) || l.a.TCPMemoryUsed() <= memory-leastBoth {
				t.Errorf("the buffers have %d bytes of %d: %v", l.a.TCPMemoryUsed(), memory, err)
			}
			break
		}
		b := l.accept()
		transfer(t, a, b, 1<<20)
		if streams = append(streams, a, b); len(streams) > 2*memory/leastBoth {
			t.Fatalf("%d connections have memory for %d", len(streams)/2, memory/leastBoth)
		}
	}
	if n := len(streams) / 2; n < conns+memory/4/leastBoth {
		t.Errorf("%d connections, then one was refused", n)
	}
	streams[0].Abort()
	streams[1].Abort()
	a, b := l.dial(0)
	transfer(t, a, b, 1<<20)
	for _, s := range append(streams, a, b) {
		s.Abort()
	}
	wantMemory(t, 0, l.a, l.b)
}

// TestTCPMemoryOfUnacceptedConnections checks that unaccepted connections are counted, and reset
// without memory.
func TestTCPMemoryOfUnacceptedConnections(t *testing.T) {
	const conns = 5
	lan := new(pipe.Switch)
	l := &lane{t: t,
		a: newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}),
		b: newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}, TCP: netstack.TCPConfig{Memory: conns * leastBoth}}),
	}
	l.listen()
	dial := func() (stack.Stream, error) {
		s, err := l.a.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7471"))
		if err == nil {
			t.Cleanup(s.Abort)
		}
		return s, err
	}
	for i := range conns {
		if _, err := dial(); err != nil {
			t.Fatal(err)
		}
		wantMemory(t, int64(i+1)*leastBoth, l.b)
	}
	refused, err := dial()
	if err == nil { // the handshake ended before the reset
		_ = refused.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = refused.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("a connection without memory: %v", err)
	}
	l.accept().Abort()
	a, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	for range conns - 1 {
		l.accept()
	}
	transfer(t, a, l.accept(), 1<<20)
}

// TestListenerCloseResetsUnaccepted checks that a closed listener leaves nothing of unaccepted
// connections.
func TestListenerCloseResetsUnaccepted(t *testing.T) {
	l := newLane(t, nil)
	s, err := l.a.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7471"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Abort()
	wantMemory(t, leastBoth, l.b)
	l.listener.Close()
	wantMemory(t, 0, l.b)
	if err := s.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("an unaccepted connection: %v", err)
	}
}

// gap is a link that, once armed, loses the second segment with data. The sender may have to wait
// for the first acknowledgement before it sends more. The link has no offloads, because one
// superframe could be all that the peer sends. The other host's link must have none either.
type gap struct {
	link.Link
	armed  atomic.Bool
	opened chan struct{} // closed when a segment after the lost one has arrived

	once           sync.Once
	mu             sync.Mutex
	first, missing uint64 // sequence numbers, plus 1<<32
}

// passes reports whether the segment with a sequence number arrives, and whether it is after the
// lost one.
func (g *gap) passes(seq uint64) (passes, behind bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.first == 0:
		g.first = seq
	case seq == g.first:
	case g.missing == 0:
		g.missing = seq
		return false, false
	default:
		return seq != g.missing, int32(uint32(seq)-uint32(g.missing)) > 0
	}
	return true, false
}

func (g *gap) Offloads() link.Offloads { return link.Offloads{} }

func (g *gap) Write(frames []link.Frame) (int, error) {
	if !g.armed.Load() {
		return g.Link.Write(frames)
	}
	for i := range frames {
		b := frames[i].Data
		const ip, tcp = 14, 14 + 20
		if len(b) >= tcp+20 && b[12] == 8 && b[13] == 0 && b[ip+9] == 6 && frames[i].Len() > tcp+int(b[tcp+12]>>4)*4 {
			seq := 1<<32 | uint64(binary.BigEndian.Uint32(b[tcp+4:]))
			passes, behind := g.passes(seq)
			if !passes {
				continue
			}
			if behind {
				defer g.once.Do(func() { close(g.opened) }) // when it is written
			}
		}
		if n, err := g.Link.Write(frames[i : i+1]); err != nil {
			return n, err
		}
	}
	return len(frames), nil
}

// TestTCPMemoryOfIdleConnections checks that idle connections return memory, except for data in
// their buffers, in order or not.
func TestTCPMemoryOfIdleConnections(t *testing.T) {
	for name, tc := range map[string]struct{ unread, gap bool }{
		"empty":                               {},
		"with unread data":                    {unread: true},
		"with data that arrived out of order": {unread: true, gap: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lan := new(pipe.Switch)
			w := &gap{Link: lan.Port(), opened: make(chan struct{})}
			// The first connection's receive buffer takes the free half at once.
			const receive = 1 << 20
			const memory = 2 * (receive + leastSend)
			l := &lane{t: t,
				a: newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}, TCP: netstack.TCPConfig{UserTimeout: -1}}),
				b: newHost(t, bare{lan.Port()}, &netstack.Config{Addrs: []string{"10.0.0.2/24"},
					TCP: netstack.TCPConfig{SendBuffer: leastSend, RecvBuffer: receive, Memory: memory}}),
			}
			l.listen()
			a, b := l.dial(0)
			transfer(t, a, b, 4<<20) // the congestion window grows
			x, y := l.dial(0)
			wantMemory(t, leastSend+receive+leastBoth, l.b)
			const size = 300 << 10
			if tc.unread {
				w.armed.Store(tc.gap)
				if _, err := a.Write(make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				if tc.gap {
					<-w.opened
					if _, err := b.Read(make([]byte, size)); err != nil { // the data before the gap
						t.Fatal(err)
					}
				}
			}
			// Another connection requests more until reclaim has examined the idle one
			// twice, a second apart.
			end := time.Now().Add(3 * time.Second)
			for n := 0; n < 6 || time.Now().Before(end); n++ {
				transfer(t, x, y, 1<<20)
				time.Sleep(100 * time.Millisecond)
			}
			x.Abort()
			y.Abort()
			want := int64(leastBoth)
			if tc.unread {
				want = leastSend + receive
			}
			wantMemory(t, want, l.b)
			if tc.unread && !tc.gap { // all data is still there
				if _, err := io.ReadFull(b, make([]byte, size)); err != nil {
					t.Error(err)
				}
			}
			if !tc.gap { // gVisor may have given up after many retransmissions of the lost segment
				transfer(t, a, b, 4<<20) // with shrunk buffers, too
			}
			a.Abort()
			b.Abort()
			wantMemory(t, 0, l.b)
		})
	}
}

// TestTCPMemoryIsShared checks connections that begin when others have half of the memory. They
// eventually get an equal share, even if none of the others ends.
func TestTCPMemoryIsShared(t *testing.T) {
	t.Parallel()
	const conns, memory = 6, 16 << 20
	l := newLane(t, &netstack.Config{TCP: netstack.TCPConfig{SendBuffer: 4 << 20, RecvBuffer: 4 << 20, Memory: memory}})
	type pair struct{ a, b stack.Stream }
	var pairs []pair
	for range conns {
		a, b := l.dial(0)
		pairs = append(pairs, pair{a, b})
	}
	transfer(t, pairs[0].a, pairs[0].b, 8<<20)
	before := l.a.TCPMemoryUsed()
	if before < 4<<20 {
		t.Errorf("the buffers have %d bytes, though there is memory for a full one", before)
	}
	transfer(t, pairs[1].a, pairs[1].b, 8<<20)
	if n := l.a.TCPMemoryUsed() - before; n < 256<<10 || n > memory/4*3/conns-leastBoth {
		t.Errorf("the second connection's buffers grew by %d bytes", n)
	}
	end := time.Now().Add(time.Second)
	for n := 0; n < 20 || time.Now().Before(end); n++ { // enough rounds and enough time
		for _, p := range pairs {
			transfer(t, p.a, p.b, 1<<20)
		}
	}
	var in []int
	for _, p := range pairs {
		in = append(in, fillBuffers(t, p.a))
	}
	// A share is 2 MiB. Buffers double, and half of a receive buffer is advertised.
	if slices.Min(in) < 512<<10 {
		t.Errorf("%d bytes fitted into the connections' buffers", in)
	}
	for _, p := range pairs {
		p.a.Abort()
		p.b.Abort()
	}
	wantMemory(t, 0, l.a, l.b)
}

// TestTCPMemoryBoundsTheHeap checks that data that many peers leave unread, or send with gaps,
// takes no more memory than the option allows.
func TestTCPMemoryBoundsTheHeap(t *testing.T) {
	const conns, memory = 32, 8 << 20
	lan := new(pipe.Switch)
	w := &gap{Link: lan.Port()}
	l := &lane{t: t,
		a: newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}, TCP: netstack.TCPConfig{Memory: memory}}),
		b: newHost(t, bare{lan.Port()}, &netstack.Config{Addrs: []string{"10.0.0.2/24"}, TCP: netstack.TCPConfig{Memory: memory}}),
	}
	l.listen()
	var streams []stack.Stream
	for range conns {
		a, b := l.dial(0)
		streams = append(streams, a, b)
	}
	before := heap()
	var fills sync.WaitGroup
	for i := range conns {
		fills.Go(func() { fillBuffers(t, streams[2*i+1]) }) // b's send buffers
		fills.Go(func() {                                   // and its receive buffers
			s := streams[2*i]
			_ = s.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			_, _ = s.Write(zeros[:1<<20])
		})
	}
	fills.Wait()
	if n := l.b.TCPMemoryUsed(); n > memory {
		t.Errorf("the buffers have %d bytes of %d", n, memory)
	}
	if n := heap() - before; n > 4*memory {
		t.Errorf("the heap of two hosts grew by %d bytes", n)
	}
	for _, s := range streams {
		s.Abort()
	}
	wantMemory(t, 0, l.a, l.b)
}
