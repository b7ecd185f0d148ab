package netstack_test

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// limited consumes at most most bytes at a time.
type limited struct {
	got   []byte
	calls int
	most  int
}

func (k *limited) Consume(b []byte) bool {
	k.calls++
	k.got = append(k.got, b...)
	return k.most == 0 || len(k.got) < k.most
}

func TestStreamReceive(t *testing.T) {
	a, b := streams(t, 9000, 9000)
	k := &limited{}
	if err := b.Receive(k); err != nil || k.calls != 0 {
		t.Fatalf("Receive of nothing: %d calls, %v", k.calls, err)
	}
	if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Wait past the deadline: %v", err)
	}
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}

	const pieces, size = 10, 60_000
	var f, want sequence
	for range pieces {
		if ok, err := a.Send(size, &f); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if err := a.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	k.most = 1 // a Receive ends after the first piece
	var err error
	for rounds := 0; err == nil; rounds++ {
		if err = b.Wait(); err != nil {
			break
		}
		calls := k.calls
		err = b.Receive(k)
		if k.calls > calls+1 {
			t.Fatalf("the consumer was called %d times after it returned false", k.calls-calls-1)
		}
	}
	if err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	expect := make([]byte, pieces*size)
	want.WritePiece(expect)
	if !bytes.Equal(k.got, expect) {
		t.Errorf("%d bytes arrived, not the %d sent", len(k.got), len(expect))
	}
	b.Abort()
	if err := b.Wait(); err == nil {
		err = b.Receive(k)
		if err == nil {
			t.Error("neither Wait nor Receive fails after Abort")
		}
	}
}

// TestStreamDeadlineBeforeData checks that after the read deadline Wait times out even if there is
// data: a peer that keeps sending must not delay a reader that waits for the close.
func TestStreamDeadlineBeforeData(t *testing.T) {
	a, b := streams(t, 9000, 9000)
	if ok, err := a.Send(100, &sequence{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := b.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := b.SetReadDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		t.Errorf("data, an hour before the deadline: %v", err)
	}
	if err := b.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("data, but past the deadline: %v", err)
	}
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		t.Errorf("data, without a deadline: %v", err)
	}
}

// TestStreamUnanswered checks that a stream counts the pieces sent since the peer's last answer. It
// calls OnRoom's function after an answer, even one before CallOnAnswer.
func TestStreamUnanswered(t *testing.T) {
	lan := new(pipe.Switch)
	w := &ward{Link: lan.Port()}
	a, b := streamsOn(t, w, lan.Port(), nil)
	called := make(chan struct{}, 1)
	var silent atomic.Bool // nothing arrives from the peer
	a.OnRoom(func() {
		if silent.Load() {
			t.Error("called before an answer of the peer")
		}
		select {
		case called <- struct{}{}:
		default:
		}
	})
	if n := a.Unanswered(); n != 0 {
		t.Errorf("%d pieces unanswered on a new stream", n)
	}
	wait := func() {
		t.Helper()
		select {
		case <-called:
		case <-time.After(10 * time.Second):
			t.Error("not called")
		}
	}
	w.held.Lock()
	silent.Store(true)
	const pieces = 3
	for range pieces {
		if ok, err := a.Send(8, &sequence{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for range 2 { // a query does not change the state
		if n := a.Unanswered(); n != pieces {
			t.Errorf("%d pieces unanswered, of %d sent", n, pieces)
		}
	}
	a.CallOnAnswer()
	silent.Store(false)
	w.held.Unlock()
	wait()
	if n := a.Unanswered(); n != 0 {
		t.Errorf("%d pieces unanswered after the acknowledgement", n)
	}
	a.CallOnAnswer()
	wait()
	if ok, err := b.Send(8, &sequence{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// BenchmarkStreamReceive measures a piece through both ends.
func BenchmarkStreamReceive(b *testing.B) {
	s, peer := streams(b, 9000, 9000)
	room := make(chan struct{}, 1)
	s.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	const size = stack.MaxPiece
	k := &counter{}
	f := nothing{}
	b.ReportAllocs()
	b.SetBytes(size)
	for b.Loop() {
		if ok, err := s.Send(size, f); !ok || err != nil {
			b.Fatal(ok, err)
		}
		for k.n = 0; k.n < size; {
			if err := peer.Wait(); err != nil {
				b.Fatal(err)
			}
			if err := peer.Receive(k); err != nil {
				b.Fatal(err)
			}
		}
	}
}

type counter struct{ n int }

func (k *counter) Consume(b []byte) bool {
	k.n += len(b)
	return true
}

type nothing struct{}

func (nothing) WritePiece([]byte) bool { return true }

// windowed records the largest window that a host has advertised in TCP segments, and the
// acknowledged bytes.
type windowed struct {
	link.Link
	scale   atomic.Int32 // from the SYN
	first   atomic.Uint32
	largest atomic.Int64
	acked   atomic.Uint32
	sent    chan struct{} // has room for one: a segment was sent; may be nil
}

func (w *windowed) Write(frames []link.Frame) (int, error) {
	for _, f := range frames {
		const ip = 14
		if b := f.Data; len(b) >= ip+40 && b[ip] == 0x45 && b[ip+9] == 6 {
			tcp := header.TCP(b[ip+20:])
			if tcp.Flags().Contains(header.TCPFlagSyn) {
				w.scale.Store(int32(header.ParseSynOptions(tcp.Options(), tcp.Flags().Contains(header.TCPFlagAck)).WS))
				w.largest.Store(int64(tcp.WindowSize()))
				w.first.Store(tcp.AckNumber())
				w.acked.Store(0)
			} else {
				w.acked.Store(tcp.AckNumber() - w.first.Load())
				w.largest.Store(max(w.largest.Load(), int64(tcp.WindowSize())<<w.scale.Load()))
			}
			select {
			case w.sent <- struct{}{}:
			default:
			}
		}
	}
	return w.Link.Write(frames)
}

// TestStreamReadBuffer checks that the advertised window is small until the connection is accepted,
// and stays within SetReadBuffer afterwards. A larger bound takes effect at once.
func TestStreamReadBuffer(t *testing.T) {
	lan := new(pipe.Switch)
	server := &windowed{Link: lan.Port(), sent: make(chan struct{}, 1)}
	a, b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}),
		newHost(t, server, &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	l, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.2:7"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		bound         int
		atLeast, most int64
	}{
		{bound: 0, atLeast: 1 << 20, most: 1 << 30},
		{bound: 16 << 10, most: 64 << 10}, // the SYN has advertised more than 16 KiB
	} {
		l.SetReadBuffer(c.bound)
		x, err := a.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7"))
		if err != nil {
			t.Fatal(err)
		}
		const size = 100_000
		if _, err := x.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		for server.acked.Load() < 10_000 {
			<-server.sent
		}
		if got := server.largest.Load(); got > 64<<10 {
			t.Errorf("a window of %d bytes before Accept", got)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		y := conn.(stack.Stream)
		if _, err := io.ReadFull(y, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		pass(t, y, x)
		if got := server.largest.Load(); got < c.atLeast || got > c.most {
			t.Errorf("a window of %d bytes with a buffer of %d", got, c.bound)
		}
		y.SetReadBuffer(0)
		pass(t, y, x)
		if got := server.largest.Load(); got < 1<<20 {
			t.Errorf("a window of %d bytes when the buffer is large again", got)
		}
		x.Abort()
		y.Abort()
	}
}

// pass sends a byte from one end of a stream to the other.
func pass(t *testing.T, from, to stack.Stream) {
	t.Helper()
	if _, err := from.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}
