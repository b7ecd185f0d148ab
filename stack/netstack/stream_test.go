package netstack_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// streams opens a TCP connection between two hosts on links with the given MTUs.
func streams(tb testing.TB, mtuA, mtuB int) (a, b stack.Stream) {
	tb.Helper()
	lan, err := pipe.New(&pipe.Config{MTU: mtuA})
	if err != nil {
		tb.Fatal(err)
	}
	return streamsOn(tb, lan.Port(), mtuLink{lan.Port(), mtuB}, nil)
}

// streamsOn opens a TCP connection between two hosts on links of one network. The options are the
// first one's.
func streamsOn(tb testing.TB, linkA, linkB link.Link, cfg *netstack.Config) (a, b stack.Stream) {
	tb.Helper()
	hostA, err := netstack.New(linkA, at(cfg, "10.0.0.1/24"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { hostA.Close() })
	hostB, err := netstack.New(linkB, &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { hostB.Close() })
	l, err := hostB.ListenStream(netip.MustParseAddrPort("10.0.0.2:7"))
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	if a, err = hostA.DialStream(tb.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7")); err != nil {
		tb.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	b = c.(stack.Stream)
	tb.Cleanup(func() { a.Abort(); b.Abort() })
	return a, b
}

// TestStreamLocalPort checks that a dial from a given local port succeeds though the port has, or
// recently had, another connection. Ports that the host chooses are outside the range that others
// choose from.
func TestStreamLocalPort(t *testing.T) {
	lan := new(pipe.Switch)
	var hosts [2]*netstack.Host
	for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		h, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		hosts[i] = h
	}
	dial := func(laddr netip.AddrPort, port uint16) netip.AddrPort {
		t.Helper()
		l, err := hosts[1].ListenStream(netip.AddrPortFrom(netip.Addr{}, port))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := hosts[0].DialStream(t.Context(), laddr, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.2"), port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // first: this side enters TIME-WAIT
		if s, err := l.Accept(); err != nil {
			t.Fatal(err)
		} else {
			defer s.Close()
		}
		return c.LocalAddr().(*net.TCPAddr).AddrPort()
	}
	for port := uint16(7); port < 200; port++ {
		if drawn := dial(netip.AddrPort{}, port); drawn.Port() < 61000 {
			t.Fatalf("drew port %d, which rdma_cm may draw", drawn.Port())
		}
	}
	want := netip.MustParseAddrPort("10.0.0.1:40000")
	for port := uint16(7); port < 10; port++ {
		if got := dial(want, port); got != want {
			t.Errorf("local address %v, want %v", got, want)
		}
	}
}

// mtuLink is a link that reports another MTU than the wrapped link's.
type mtuLink struct {
	*pipe.Port
	mtu int
}

func (l mtuLink) MTU() int { return l.mtu }

// sequence writes a running count.
type sequence struct{ next byte }

func (f *sequence) WritePiece(b []byte) bool {
	for i := range b {
		b[i] = f.next
		f.next++
	}
	return true
}

// unable fails to write.
type unable struct{}

func (unable) WritePiece(b []byte) bool {
	clear(b[:len(b)/2])
	return false
}

// TestStreamSendNeverWaits checks that Send never waits for room, that room is notified, and that
// all data arrives in order.
func TestStreamSendNeverWaits(t *testing.T) {
	a, b := streams(t, 4200, 4200)
	room := make(chan struct{}, 1)
	a.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	const piece, total = 50_000, 400
	var f sequence
	sent, full := 0, false
	for ; sent < total; sent++ {
		if ok, err := a.Send(piece, unable{}); ok || err != nil && !errors.Is(err, stack.ErrNotFilled) {
			t.Fatalf("a piece that could not be filled: %t, %v", ok, err)
		}
		ok, err := a.Send(piece, &f)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			full = true
			break
		}
	}
	if !full {
		t.Fatalf("%d bytes fitted into buffers without a reader", total*piece)
	}
	read := make(chan error, 1)
	go func() {
		var want sequence
		got, expect := make([]byte, piece), make([]byte, piece)
		for range total {
			if _, err := io.ReadFull(b, got); err != nil {
				read <- err
				return
			}
			want.WritePiece(expect)
			if !bytes.Equal(got, expect) {
				read <- io.ErrUnexpectedEOF
				return
			}
		}
		_, err := b.Read(got)
		read <- err
	}()
	for sent < total {
		<-room
		for sent < total {
			ok, err := a.Send(piece, &f)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			sent++
		}
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != io.EOF {
		t.Fatal(err)
	}
}

// longest records the largest amount of TCP data in a frame of IPv4, in bytes.
type longest struct {
	link.Link
	data atomic.Int64
}

func (l *longest) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		const ip, headers = 14, 14 + 20 + 20
		if b := frames[i].Data; len(b) >= headers && b[ip] == 0x45 && b[ip+9] == 6 {
			size := len(b) - ip - 20 - int(b[ip+20+12]>>4)*4
			for _, more := range frames[i].More {
				size += len(more)
			}
			l.data.Store(max(l.data.Load(), int64(size)))
		}
	}
	return l.Link.Write(frames)
}

// TestStreamPieceInOneFrame checks that the longest piece leaves in one frame, if the link
// segments.
func TestStreamPieceInOneFrame(t *testing.T) {
	lan, err := pipe.New(&pipe.Config{MTU: 9000})
	if err != nil {
		t.Fatal(err)
	}
	l := &longest{Link: lan.Port()}
	a, b := streamsOn(t, l, lan.Port(), nil)
	if !a.Offloaded() {
		t.Fatal("the link does not segment")
	}
	for range 20 { // the windows must open
		if ok, err := a.Send(stack.MaxPiece, &sequence{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if _, err := io.ReadFull(b, make([]byte, stack.MaxPiece)); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.data.Load(); n != stack.MaxPiece {
		t.Errorf("frames had at most %d bytes of data, of pieces of %d", n, stack.MaxPiece)
	}
}

// ward is a link that counts sent frames, and delays received ones while held.
type ward struct {
	link.Link
	held sync.RWMutex
	sent atomic.Int64
}

func (w *ward) Attach(recv link.Receiver) {
	w.Link.Attach(func(frames []link.Frame) {
		w.held.RLock()
		defer w.held.RUnlock()
		recv(frames)
	})
}

func (w *ward) Write(frames []link.Frame) (int, error) {
	w.sent.Add(int64(len(frames)))
	return w.Link.Write(frames)
}

// TestStreamSmallWrites checks that small writes are separate segments, until too many are
// unanswered: then they are coalesced.
func TestStreamSmallWrites(t *testing.T) {
	lan := new(pipe.Switch)
	w := &ward{Link: lan.Port()}
	a, b := streamsOn(t, w, lan.Port(), nil)
	exchange := func(write func([]byte), n int) {
		t.Helper()
		sent, got := make([]byte, n), make([]byte, n)
		for i := range sent {
			sent[i] = byte(i * 7)
		}
		write(sent)
		if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes arrived wrong, or: %v", n, err)
		}
		if _, err := b.Write(got[:1]); err != nil { // acknowledges everything
			t.Fatal(err)
		}
		if _, err := a.Read(got[:1]); err != nil {
			t.Fatal(err)
		}
	}
	inPieces := func(size int) func([]byte) {
		return func(p []byte) {
			for piece := range slices.Chunk(p, size) {
				if _, err := a.Write(piece); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	exchange(inPieces(1<<16), 2<<20) // the congestion window grows
	exchange(func(p []byte) {
		w.held.Lock()
		defer w.held.Unlock()
		before := w.sent.Load()
		inPieces(8)(p)
		if n := w.sent.Load() - before; n == 0 || n > 100 {
			t.Errorf("%d frames sent for %d unanswered small writes", n, len(p)/8)
		}
	}, 2000*8)
	// After an answer of the peer, small writes are sent at once again.
	for single := false; !single; {
		exchange(func(p []byte) {
			w.held.Lock()
			defer w.held.Unlock()
			before := w.sent.Load()
			inPieces(1)(p)
			single = w.sent.Load()-before >= int64(len(p))
		}, 3)
	}
}

// TestStreamMSS checks that the segment size is what both links allow, less gVisor's room for
// options.
func TestStreamMSS(t *testing.T) {
	for _, tc := range []struct{ a, b, want int }{
		{1500, 1500, 1420}, {9000, 1500, 1420}, {1500, 9000, 1420}, {9000, 9000, 8920},
	} {
		a, b := streams(t, tc.a, tc.b)
		if a.MSS() != tc.want || b.MSS() != tc.want {
			t.Errorf("MTUs %d and %d: MSS %d and %d, want %d", tc.a, tc.b, a.MSS(), b.MSS(), tc.want)
		}
	}
}

func TestStreamRefusesPiecesOfWrongSize(t *testing.T) {
	a, _ := streams(t, 1500, 1500)
	for _, n := range []int{-1, 0, stack.MaxPiece + 1} {
		if ok, err := a.Send(n, &sequence{}); ok || err == nil {
			t.Errorf("Send of %d bytes: %v, %v", n, ok, err)
		}
	}
	a.Abort()
	if ok, err := a.Send(1, &sequence{}); ok || err == nil {
		t.Errorf("Send after Abort: %v, %v", ok, err)
	}
}

func BenchmarkStreamSend(b *testing.B) {
	s, peer := streams(b, 9000, 9000)
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	room := make(chan struct{}, 1)
	s.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	f := &sequence{}
	b.ReportAllocs()
	b.SetBytes(8192)
	for b.Loop() {
		for {
			ok, err := s.Send(8192, f)
			if err != nil {
				b.Fatal(err)
			}
			if ok {
				break
			}
			<-room
		}
	}
}

// TestStreamReset checks that a reader gets an errno that tells why the stream ended.
func TestStreamReset(t *testing.T) {
	a, b := streams(t, 1500, 1500)
	b.Abort()
	if _, err := a.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v", err)
	}
}
