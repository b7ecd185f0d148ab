package rdmatransport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestClock: two devices have the time of their links. It takes its course while the machine's time
// stands.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, sim, lan := time.Now(), stacktest.NewClock(1), new(pipe.Switch)
		start := sim.Now()
		const delay = 5 * time.Millisecond
		path := must(impair.New(sim.On(lan.Port()), &impair.Config{Out: impair.Direction{Delay: delay}}))(t)
		r := tracer{added: make(chan struct{}, 1)}
		a := newStationOn(t, path, "10.0.0.1/24", &rdmatransport.Config{Trace: r.sink})
		b := newStationOn(t, sim.On(lan.Port()), "10.0.0.2/24", nil)

		// passes lets time pass until something has happened, and returns how much did.
		passes := func(happened func() bool) time.Duration {
			t.Helper()
			from := sim.Now()
			for range 1_000_000 {
				if synctest.Wait(); happened() {
					return sim.Now().Sub(from)
				}
				sim.Advance(time.Millisecond)
			}
			t.Fatal("it does not happen")
			return 0
		}
		ln := must(rdmacm.Listen(b.dev, ":7471", nil))(t)
		peers := make(chan *rdmacm.Conn, 1)
		go func() { peers <- must(ln.Accept(t.Context()))(t) }()
		var conn *rdmacm.Conn
		go func() { conn = must(rdmacm.Dial(t.Context(), a.dev, b.at(7471), nil))(t) }()
		if d := passes(func() bool { return conn != nil && len(peers) > 0 }); d < 2*delay || d > 10*delay {
			t.Errorf("the connection took %v, with a delay of %v", d, delay)
		}
		peer := <-peers

		// Acknowledgement.
		var wc [1]verbs.WC
		done := func() bool { return must(conn.SendCQ().Poll(wc[:]))(t) == 1 }
		ok(t, peer.QP().PostRecv(&verbs.RecvWR{}))
		ok(t, conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		if d := passes(done); wc[0].Status != verbs.WCSuccess || d < delay || d > 2*delay {
			t.Errorf("%v after %v", wc[0].Status, d)
		}

		// Retries.
		ok(t, path.Set(&impair.Config{Out: impair.Direction{Loss: 1}}))
		ok(t, conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		if d := passes(done); wc[0].Status != verbs.WCRetryExcErr || d < 100*time.Millisecond {
			t.Errorf("%v after %v without answers", wc[0].Status, d)
		}

		if raw := a.dev.RawClock(); raw != sim.Now().Sub(start) {
			t.Errorf("the device's clock shows %v, and %v have passed", raw, sim.Now().Sub(start))
		}
		timeouts := 0
		r.mu.Lock()
		for _, e := range r.events {
			if e.Time.Before(start) || e.Time.After(sim.Now()) {
				t.Errorf("%v at %v", e.Type, e.Time)
			}
			if e.Type == trace.RetransmissionTimeout {
				timeouts++
			}
		}
		r.mu.Unlock()
		if timeouts == 0 {
			t.Error("no timeout was traced")
		}

		// The peer confirms no disconnection.
		closed := make(chan error, 2)
		go func() { closed <- conn.Close() }()
		passes(func() bool { return len(closed) == 1 })
		go func() { closed <- peer.Close() }()
		passes(func() bool { return len(closed) == 2 })
		ok(t, ln.Close())
		if d := time.Since(began); d != 0 {
			t.Errorf("%v of the machine's time have passed: something waits for it", d)
		}
	})
}
