package rsocket_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
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
			a, b, err := connect(from, to, server, &rsocket.Config{KeepAlive: every})
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

// isTimeout tells whether a deadline has passed, which is no ETIMEDOUT of the connection.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.Is(err, syscall.ETIMEDOUT)
}
