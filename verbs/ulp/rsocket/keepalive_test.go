package rsocket_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// A connection with KeepAlive fails when the peer's port loses its carrier, even without writes. A
// connection without KeepAlive does not fail. Time is virtual.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		peerPort := lan.Port()
		to, from := open(t, peerPort, server), open(t, lan.Port(), client)
		var conns []*rsocket.Conn
		for _, every := range []time.Duration{time.Minute, 0} {
			a, b, err := connect(from, to, serverAt, &rsocket.Config{KeepAlive: every})
			ok(t, err)
			defer a.Close()
			defer b.Close()
			conns = append(conns, a)
		}
		// While the peer is reachable, no connection fails.
		for _, c := range conns {
			ok(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
		}
		if _, err := conns[0].Read(make([]byte, 1)); !isTimeout(err) {
			t.Fatalf("Read from a silent peer: %v", err)
		}
		peerPort.SetCarrier(false)
		began := time.Now()
		for _, c := range conns {
			ok(t, c.SetReadDeadline(began.Add(time.Hour)))
		}
		_, err := conns[0].Read(make([]byte, 1))
		if took := time.Since(began); !errors.Is(err, syscall.ETIMEDOUT) || took > 2*time.Minute {
			t.Errorf("Read with KeepAlive, without a network: %v after %v", err, took)
		}
		if _, err := conns[0].Write([]byte("x")); !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("Write after that: %v", err)
		}
		if _, err := conns[1].Read(make([]byte, 1)); !isTimeout(err) {
			t.Errorf("Read without KeepAlive, without a network: %v", err)
		}
		peerPort.SetCarrier(true)
	})
}

// The same over iWARP. There the probe is a TCP segment, and TCP ends the connection if the segment
// is not acknowledged within the user timeout. TCP's own keepalive, which would have the same
// effect, is off. Time is real, because gVisor's TCP needs it, but the result does not depend on
// the time that passes. KeepAlive is longer than a retransmission timeout, because gVisor restarts
// that timer whenever it sends.
func TestKeepAliveOverIWARP(t *testing.T) {
	t.Parallel()
	lan := new(pipe.Switch)
	peerPort := lan.Port()
	to := openWith(t, peerPort, &netstack.Config{Addrs: []string{server}, TCP: netstack.TCPConfig{KeepAliveIdle: -1}})
	from := openWith(t, lan.Port(),
		&netstack.Config{Addrs: []string{client}, TCP: netstack.TCPConfig{KeepAliveIdle: -1, UserTimeout: 3 * time.Second}})
	var conns []*rsocket.Conn
	for _, every := range []time.Duration{2 * time.Second, 0} {
		a, b, err := connect(from, to, serverAt, &rsocket.Config{Transport: verbs.IWARP, KeepAlive: every, Linger: time.Millisecond})
		ok(t, err)
		defer a.Close()
		defer b.Close()
		// The answer acknowledges all data, so that no TCP timer is pending afterwards.
		for _, way := range [][2]*rsocket.Conn{{a, b}, {b, a}} {
			_, err := way[0].Write([]byte("x"))
			ok(t, err)
			_, err = way[1].Read(make([]byte, 1))
			ok(t, err)
		}
		conns = append(conns, a)
	}
	peerPort.SetCarrier(false)
	_, err := conns[0].Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Read with KeepAlive, without a network: %v", err)
	}
	if err := conns[1].Err(); err != nil {
		t.Errorf("without KeepAlive and a network: %v", err)
	}
	peerPort.SetCarrier(true) // so that Close does not wait
}

// isTimeout reports whether an error is that of a deadline, and not ETIMEDOUT of the connection.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}

// TestAbort: Abort does not wait for a peer that does not answer, and one that does gets an error.
// Time is virtual.
func TestAbort(t *testing.T) {
	for _, carrier := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lan := new(pipe.Switch)
			peerPort := lan.Port()
			to, from := open(t, peerPort, server), open(t, lan.Port(), client)
			a, b, err := connect(from, to, serverAt, nil)
			ok(t, err)
			peerPort.SetCarrier(carrier)
			_, err = a.Write([]byte("x"))
			ok(t, err)
			began := time.Now()
			ok(t, a.Abort())
			if took := time.Since(began); took > 0 {
				t.Errorf("Abort takes %v", took)
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Write after it: %v", err)
			}
			if carrier {
				for err = nil; err == nil; _, err = b.Read(make([]byte, 1)) {
				}
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the peer's Read: %v", err)
				}
			}
			peerPort.SetCarrier(true)
			ok(t, b.Abort())
		})
	}
}
