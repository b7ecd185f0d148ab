//go:build linux

package kernel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/tests/stacktest"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newHost creates a host on the loopback with one address. It skips the test if there is no such
// address.
func newHost(t testing.TB, addr string) *kernel.Host {
	t.Helper()
	if addr == "::1" {
		stacktest.IPv6Loopback(t)
	}
	h, err := kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{addr}})
	for give := time.Now().Add(20 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(give); {
		time.Sleep(50 * time.Millisecond)
		// Another package's tests use ::1.
		h, err = kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{addr}})
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) && os.Getenv("CI") == "" {
		t.Skipf("lo has no %s", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// connect opens a connection between two hosts.
func connect(t testing.TB, from, to *kernel.Host, addr string) (dialed, accepted stack.Stream) {
	t.Helper()
	l := must(to.ListenStream(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))(t)
	defer l.Close()
	dialed = must(from.DialStream(t.Context(), netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort()))(t)
	accepted = must(l.Accept())(t).(stack.Stream)
	t.Cleanup(func() { dialed.Abort(); accepted.Abort() })
	return dialed, accepted
}

func pair(t testing.TB) (a, b stack.Stream) {
	return connect(t, newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2"), "127.0.0.2")
}

// sequence writes bytes that continue where the last piece ended.
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

// checker consumes everything, and checks that it continues where the last piece ended.
type checker struct {
	next byte
	n    int
	bad  bool
	most int // bytes of one round; 0 is all
}

func (c *checker) Consume(b []byte) bool {
	for _, v := range b {
		c.bad = c.bad || v != c.next
		c.next++
	}
	c.n += len(b)
	return c.most == 0
}

// TestStreamCarriesPieces checks that pieces of all sizes arrive in order, through a send buffer
// that is often full.
func TestStreamCarriesPieces(t *testing.T) {
	a, b := pair(t)
	room := make(chan struct{}, 1)
	a.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	const total = 32 << 20
	full := make(chan struct{})
	refused := sync.OnceFunc(func() { close(full) })
	failed := make(chan error, 1)
	go func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		var f sequence
		for sent := 0; sent < total; {
			n := min(1+rnd.IntN(stack.MaxPiece), total-sent)
			if ok, err := a.Send(n, unable{}); ok || err != nil && !errors.Is(err, stack.ErrNotFilled) {
				failed <- fmt.Errorf("a piece that could not be filled: %t, %w", ok, err)
				return
			}
			switch ok, err := a.Send(n, &f); {
			case err != nil:
				failed <- err
				return
			case !ok:
				refused()
				<-room
			default:
				sent += n
			}
		}
		failed <- a.CloseWrite()
	}()
	select {
	case <-full:
	case err := <-failed:
		t.Fatalf("the send buffer was never full, and all was sent: %v", err)
	}
	var c checker
	for {
		if err := b.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := b.Receive(&c); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if c.n != total || c.bad {
		t.Errorf("%d bytes of %d arrived, damaged: %t", c.n, total, c.bad)
	}
	if _, err := a.Send(1, new(sequence)); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("Send after CloseWrite: %v, want EPIPE", err)
	}
}

// TestSendOfWrongSize checks that Send fails without calling the PieceWriter.
func TestSendOfWrongSize(t *testing.T) {
	a, _ := pair(t)
	for _, n := range []int{-1, 0, stack.MaxPiece + 1} {
		f := sequence{next: 7}
		if ok, err := a.Send(n, &f); ok || err == nil || f.next != 7 {
			t.Errorf("a piece of %d bytes: %t, %v", n, ok, err)
		}
	}
}

// TestConsumerStops checks that data that a Consumer left stays for the next Receive and for Read.
func TestConsumerStops(t *testing.T) {
	a, b := pair(t)
	sent := bytes.Repeat([]byte("0123456789"), 20000)
	go a.Write(sent)
	if err := b.Wait(); err != nil {
		t.Fatal(err)
	}
	first := oneBuffer{}
	if err := b.Receive(&first); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil { // reads the data, and keeps it
		t.Fatal(err)
	}
	rest := make([]byte, len(sent)-len(first.got))
	if _, err := io.ReadFull(b, rest); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(append(first.got, rest...), sent) {
		t.Error("the bytes differ")
	}
	if len(first.got) == 0 || len(first.got) == len(sent) {
		t.Errorf("one call has taken %d bytes of %d", len(first.got), len(sent))
	}
}

// oneBuffer consumes one buffer.
type oneBuffer struct{ got []byte }

func (t *oneBuffer) Consume(b []byte) bool {
	t.got = append(t.got, b...)
	return false
}

// TestWaitPastDeadline checks that Wait times out, and that later data is received.
func TestWaitPastDeadline(t *testing.T) {
	a, b := pair(t)
	b.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	var ne net.Error
	if err := b.Wait(); !errors.As(err, &ne) || !ne.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v, want a timeout", err)
	}
	b.SetReadDeadline(time.Time{})
	if ok, err := a.Send(5, new(sequence)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var c checker
	if err := errors.Join(b.Wait(), b.Receive(&c)); err != nil || c.n != 5 || c.bad {
		t.Errorf("%v, %d bytes, damaged: %t", err, c.n, c.bad)
	}
}

// TestReceiveDoesNotWait checks that Receive returns at once without data, and without an error.
func TestReceiveDoesNotWait(t *testing.T) {
	_, b := pair(t)
	var c checker
	if err := b.Receive(&c); err != nil || c.n != 0 {
		t.Errorf("%v, %d bytes", err, c.n)
	}
}

// TestAbortResets checks that the peer reads ECONNRESET, that this end's calls fail, and that a
// waiting call returns.
func TestAbortResets(t *testing.T) {
	a, b := pair(t)
	waits := make(chan error)
	go func() { waits <- a.Wait() }()
	stacktest.AwaitWaiting(t, "kernel.(*stream).Wait", "IO wait")
	a.Abort()
	if err := <-waits; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the waiting call: %v, want net.ErrClosed", err)
	}
	if _, err := a.Send(1, new(sequence)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send: %v, want net.ErrClosed", err)
	}
	if err := b.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := b.Receive(new(checker)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer: %v, want ECONNRESET", err)
	}
}

// TestCloseDelivers checks that data sent before Close arrives, despite a full send buffer and a
// slow peer.
func TestCloseDelivers(t *testing.T) {
	a, b := pair(t)
	var f sequence
	total := 0
	for {
		ok, err := a.Send(stack.MaxPiece, &f)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		total += stack.MaxPiece
	}
	if a.Unanswered() == 0 {
		t.Error("a full send buffer has nothing unanswered")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	var c checker
	for {
		if err := b.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := b.Receive(&c); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if c.n != total || c.bad {
		t.Errorf("%d bytes of %d arrived, damaged: %t", c.n, total, c.bad)
	}
}

// TestWriteStaysBehindPieces checks that Write waits until Send's data is written.
func TestWriteStaysBehindPieces(t *testing.T) {
	a, b := pair(t)
	// Otherwise the kernel may enlarge its buffers, and take all pieces.
	if err := a.(interface{ SetWriteBuffer(int) error }).SetWriteBuffer(1 << 16); err != nil {
		t.Fatal(err)
	}
	b.SetReadBuffer(1 << 16)
	var f sequence
	total := 0
	for ok := true; ok; {
		var err error
		if ok, err = a.Send(1<<16-256, &f); err != nil {
			t.Fatal(err)
		} else if ok {
			total += 1<<16 - 256
		}
	}
	wrote := make(chan error, 1)
	go func() {
		last := make([]byte, 1000)
		f.WritePiece(last)
		_, err := a.Write(last)
		wrote <- errors.Join(err, a.CloseWrite())
	}()
	stacktest.AwaitWaiting(t, "kernel.(*stream).Write", "sync.Cond.Wait") // for the pieces
	b.SetReadBuffer(1 << 22)
	all := must(io.ReadAll(b))(t)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	var c checker
	if c.Consume(all); c.n != total+1000 || c.bad {
		t.Errorf("%d bytes of %d arrived, damaged: %t", c.n, total+1000, c.bad)
	}
}

// TestCallOnAnswer checks that OnRoom's function is called even if nothing is unanswered.
func TestCallOnAnswer(t *testing.T) {
	a, _ := pair(t)
	called := make(chan struct{}, 8)
	a.OnRoom(func() { called <- struct{}{} })
	a.CallOnAnswer()
	select {
	case <-called:
	case <-time.After(10 * time.Second):
		t.Fatal("OnRoom's function was not called")
	}
}

func TestDialErrors(t *testing.T) {
	h := newHost(t, "127.0.0.1")
	for _, c := range []struct {
		name         string
		laddr, raddr string
		want         error
	}{
		{"no listener", "", "127.0.0.1:1", syscall.ECONNREFUSED},
		{"an address that is not the host's", "127.0.0.9:0", "127.0.0.1:1", syscall.EADDRNOTAVAIL},
		{"no route to the other family", "", "[2001:db8::1]:1", syscall.ENETUNREACH},
	} {
		var laddr netip.AddrPort
		if c.laddr != "" {
			laddr = netip.MustParseAddrPort(c.laddr)
		}
		if _, err := h.DialStream(t.Context(), laddr, netip.MustParseAddrPort(c.raddr)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.DialStream(ctx, netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	l := must(h.ListenStream(netip.MustParseAddrPort("0.0.0.0:0")))(t)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	if _, err := h.ListenStream(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port with a listener: %v, want EADDRINUSE", err)
	}
	if _, err := h.ListenStream(netip.MustParseAddrPort("127.0.0.9:0")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("listening at an address that is not the host's: %v, want EADDRNOTAVAIL", err)
	}
}

// TestDialFromPortInTimeWait checks that a port chosen by the caller can be used while an earlier
// connection from it is in TIME-WAIT.
func TestDialFromPortInTimeWait(t *testing.T) {
	h, peer := newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2")
	free := must(h.ListenStream(netip.MustParseAddrPort("127.0.0.1:0")))(t)
	from := free.Addr().(*net.TCPAddr).AddrPort()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		l := must(peer.ListenStream(netip.MustParseAddrPort("127.0.0.2:0")))(t)
		a, err := h.DialStream(t.Context(), from, l.Addr().(*net.TCPAddr).AddrPort())
		if err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		b := must(l.Accept())(t)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if n, err := b.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v", n, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		_ = l.Close()
	}
}

// TestHostCloseEndsStreams checks that Close ends waiting calls of streams and listeners.
func TestHostCloseEndsStreams(t *testing.T) {
	h, peer := newHost(t, "127.0.0.1"), newHost(t, "127.0.0.2")
	a, b := connect(t, h, peer, "127.0.0.2")
	l := must(h.ListenStream(netip.MustParseAddrPort("0.0.0.0:0")))(t)
	ended := make(chan error, 2)
	go func() { ended <- a.Wait() }()
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	stacktest.AwaitWaiting(t, "kernel.(*stream).Wait", "IO wait")
	stacktest.AwaitWaiting(t, "kernel.(*listener).Accept", "select")
	h.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v, want net.ErrClosed", err)
		}
	}
	if err := b.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := b.Receive(new(checker)); err == nil {
		t.Error("the peer's stream is still open")
	}
	if _, err := h.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.2:1")); err == nil {
		t.Error("a closed host can dial")
	}
}

// BenchmarkStream sends and receives a piece.
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{64, stack.MaxPiece} {
		b.Run(map[bool]string{true: "64", false: "MaxPiece"}[n == 64], func(b *testing.B) {
			x, y := pair(b)
			y.SetReadBuffer(0)
			var f zeros
			var c counter
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				if ok, err := x.Send(n, f); !ok || err != nil {
					b.Fatal(ok, err)
				}
				for c.n = 0; c.n < n; {
					if err := y.Wait(); err != nil {
						b.Fatal(err)
					}
					if err := y.Receive(&c); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

type zeros struct{}

func (zeros) WritePiece(b []byte) bool {
	clear(b)
	return true
}

type counter struct{ n int }

func (c *counter) Consume(b []byte) bool { c.n += len(b); return true }
