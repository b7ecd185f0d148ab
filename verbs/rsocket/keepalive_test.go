package rsocket_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rsocket"
)

// A connection with KeepAlive fails when the peer's cable is pulled, also if nobody writes; one without does not notice. Time is
// virtual.
func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		far := lan.Port()
		to, from := open(t, far, server), open(t, lan.Port(), client)
		var conns []*rsocket.Conn
		for _, every := range []time.Duration{time.Minute, 0} {
			a, b, err := connect(from, to, serverAt, &rsocket.Config{KeepAlive: every})
			ok(t, err)
			defer a.Close()
			defer b.Close()
			conns = append(conns, a)
		}
		// As long as the peer is there, none fails.
		for _, c := range conns {
			ok(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
		}
		if _, err := conns[0].Read(make([]byte, 1)); !isTimeout(err) {
			t.Fatalf("Read from a silent peer: %v", err)
		}
		far.SetCarrier(false)
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
		far.SetCarrier(true)
	})
}

// Over iWARP too. There the probe is a segment of TCP, which ends the connection when that is not acknowledged for its user timeout. TCP's
// own keepalive, which would find the same, is off. Time is real, as gVisor's TCP needs, but nothing depends on how much of it passes,
// only KeepAlive is longer than a retransmission timeout: gVisor puts that off whenever something else is sent.
func TestKeepAliveOverIWARP(t *testing.T) {
	t.Parallel()
	lan := new(pipe.Switch)
	far := lan.Port()
	noKeepAlive := netstack.KeepAlive(0, 0, 0)
	to, from := open(t, far, server, noKeepAlive), open(t, lan.Port(), client, noKeepAlive, netstack.UserTimeout(3*time.Second))
	var conns []*rsocket.Conn
	for _, every := range []time.Duration{2 * time.Second, 0} {
		a, b, err := connect(from, to, serverAt, &rsocket.Config{Transport: verbs.IWARP, KeepAlive: every, Linger: time.Millisecond})
		ok(t, err)
		defer a.Close()
		defer b.Close()
		for _, way := range [][2]*rsocket.Conn{{a, b}, {b, a}} { // afterwards TCP has nothing to wait for: the answer acknowledges all
			_, err := way[0].Write([]byte("x"))
			ok(t, err)
			_, err = way[1].Read(make([]byte, 1))
			ok(t, err)
		}
		conns = append(conns, a)
	}
	far.SetCarrier(false)
	_, err := conns[0].Read(make([]byte, 1))
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Read with KeepAlive, without a network: %v", err)
	}
	if err := conns[1].Err(); err != nil {
		t.Errorf("without KeepAlive and a network: %v", err)
	}
	far.SetCarrier(true) // so that Close need not wait
}

// isTimeout tells whether a deadline has passed, which is no ETIMEDOUT of the connection.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}
