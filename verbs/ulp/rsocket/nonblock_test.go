package rsocket_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// waiter returns a function that waits until a socket is ready for one of the given operations.
func waiter(c interface {
	OnReady(func(rsocket.Ready))
	Ready() rsocket.Ready
}) func(rsocket.Ready) rsocket.Ready {
	changed := make(chan struct{}, 1)
	c.OnReady(func(rsocket.Ready) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	return func(want rsocket.Ready) rsocket.Ready {
		for {
			if r := c.Ready(); r&want != 0 {
				return r
			}
			<-changed
		}
	}
}

// A stream over non-blocking calls, which fill all buffers.
func TestTryReadAndWrite(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		for _, size := range []int{50, 1000, 100_000} {
			a, b := pair(t, m, &rsocket.Config{Transport: transport, SendBuffer: 8 << 10, RecvBuffer: 8 << 10})
			data := random(min(500_000, 1000*size))
			go func() {
				wait := waiter(a)
				for left := data; len(left) > 0; {
					n, err := a.TryWrite(left[:min(size, len(left))])
					if err != nil && (n != 0 || !errors.Is(err, verbs.ErrAgain)) {
						t.Errorf("TryWrite: %d, %v", n, err)
						break
					}
					if left = left[n:]; err != nil {
						wait(rsocket.Writable)
					}
				}
				if err := a.CloseWrite(); err != nil {
					t.Error(err)
				}
			}()
			wait := waiter(b)
			var got []byte
			for buf, peeked := make([]byte, size), make([]byte, size); ; {
				n, err := b.TryRead(buf[:0])
				if n != 0 || err != nil {
					t.Fatalf("TryRead of 0 bytes: %d, %v", n, err)
				}
				p, _ := b.Peek(peeked)
				n, err = b.TryRead(buf)
				if errors.Is(err, verbs.ErrAgain) {
					wait(rsocket.Readable)
					continue
				}
				if err == io.EOF {
					break
				}
				ok(t, err)
				if n < p || !bytes.Equal(peeked[:p], buf[:p]) {
					t.Fatalf("Peek returned %d bytes, TryRead %d, or different bytes", p, n)
				}
				got = append(got, buf[:n]...)
			}
			if !bytes.Equal(got, data) {
				t.Errorf("in pieces of %d: %d bytes of %d, or different bytes", size, len(got), len(data))
			}
			if r := b.Ready(); r != rsocket.Readable|rsocket.Writable {
				t.Errorf("at the end of the peer's half, ready is %b", r)
			}
			ok(t, a.Close())
			wait(rsocket.HungUp)
			if _, err := b.TryWrite(data); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("TryWrite to a peer that has closed: %v", err)
			}
		}
	})
}

// A waiting writer becomes Writable only after the reader has freed buffer space.
func TestWritable(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		a, b := pair(t, m, &rsocket.Config{Transport: transport, SendBuffer: 8 << 10, RecvBuffer: 8 << 10})
		total := 0
		wait := waiter(a)
		for total < 8<<10 { // the peer's buffer
			wait(rsocket.Writable)
			n, err := a.TryWrite(make([]byte, 3000))
			ok(t, err)
			total += n
		}
		// And this side's buffer, part of which may still be in use.
		for a.Ready()&rsocket.Writable != 0 {
			n, err := a.TryWrite(make([]byte, 3000))
			ok(t, err)
			if total += n; total > 16<<10 {
				t.Fatalf("%d bytes were accepted without a reader", total)
			}
		}
		n, err := io.ReadFull(b, make([]byte, total))
		if n != total || err != nil {
			t.Errorf("%d bytes of %d arrived: %v", n, total, err)
		}
		wait(rsocket.Writable)
	})
}

// Datagrams over non-blocking calls. At most as many as there are slots are in flight. Each arrives
// complete or not at all.
func TestTryDatagrams(t *testing.T) {
	a, b := nodes(t)
	server, client := a.socket(t, "10.0.0.1:7", nil), b.socket(t, "10.0.0.2:8", &rsocket.Config{SendBuffer: 4 << 10})
	to, from := netip.MustParseAddrPort("10.0.0.1:7"), netip.MustParseAddrPort("10.0.0.2:8")
	arrived, free := waiter(server), waiter(client)
	buf := make([]byte, rsocket.MaxDatagram)
	if r := server.Ready(); r != rsocket.Writable {
		t.Errorf("ready is %b before the first datagram", r)
	}
	if _, _, err := server.TryReadFrom(buf, false); !errors.Is(err, verbs.ErrAgain) {
		t.Errorf("TryReadFrom without a datagram: %v", err)
	}
	for i := range 500 {
		data := random(1 + i)
		for {
			n, err := client.TryWriteTo(data, to)
			if !errors.Is(err, verbs.ErrAgain) {
				ok(t, err)
				if n != len(data) {
					t.Fatalf("%d bytes of %d were sent", n, len(data))
				}
				break
			}
			free(rsocket.Writable)
		}
		arrived(rsocket.Readable)
		for _, peek := range []bool{true, false} {
			n, at, err := server.TryReadFrom(buf, peek)
			ok(t, err)
			if at != from || !bytes.Equal(buf[:n], data) {
				t.Fatalf("datagram %d of %d bytes: %d bytes from %v, or different bytes", i, len(data), n, at)
			}
		}
	}
	if _, err := client.TryWriteTo(buf, to); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("too long a datagram: %v", err)
	}
	ok(t, server.Close())
	if _, _, err := server.TryReadFrom(buf, false); !errors.Is(err, net.ErrClosed) {
		t.Errorf("TryReadFrom after Close: %v", err)
	}
}
