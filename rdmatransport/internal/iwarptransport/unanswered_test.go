package iwarptransport_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// leaving are the ways in which a peer ends an unanswered request.
var leaving = map[string]func(p *peer){
	"reset":                     func(p *peer) { p.s.(*stream).Abort() },
	"FIN":                       func(p *peer) { p.s.Close() },
	"data, a byte":              func(p *peer) { p.write([]byte{0}) },
	"data, as much as possible": func(p *peer) { p.s.SetWriteDeadline(timeIn(1)); p.s.Write(make([]byte, 1<<20)) },
	"data, a request":           func(p *peer) { p.write(encode(p.t, request())) },
	"half close, no data":       func(p *peer) { p.s.(*stream).CloseWrite() },
}

// Requests whose peers have left, or have sent too early, leave the backlog at once. The
// application does not get such requests, and there is room for others.
func TestRequestsAbandoned(t *testing.T) {
	for name, leave := range leaving {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const backlog = 8
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				cfg := d.config()
				cfg.Backlog = backlog
				l, err := rdmacm.Listen(d.dev, nodePort, cfg)
				must(t, err)
				defer l.Close()
				for range 3 * backlog {
					p := dialNode(t, d.net, request())
					synctest.Wait()
					leave(p)
					synctest.Wait()
					if p.s.(*stream).open() {
						t.Fatal("the stream is kept")
					}
				}
				s := &session{node: d, p: dialNode(t, d.net, request())}
				r, err := l.Request(t.Context())
				must(t, err)
				s.conn, err = r.Accept(t.Context(), cfg)
				must(t, err)
				s.started()
				if s.p.frame().Rejected {
					t.Error("rejected")
				}
				if n := d.counter("iwarp_connects_refused"); n != 0 {
					t.Errorf("%d connections counted as refused", n)
				}
			})
		})
	}
}

// An application that already has a request gets no event when the peer leaves, as in Linux. Done
// tells it, and its answer fails with ECONNRESET. The request has left the backlog before.
func TestRequestAbandonedInHand(t *testing.T) {
	for name, leave := range leaving {
		for _, connected := range []bool{false, true} { // the QP is in RTS
			if connected && strings.HasPrefix(name, "data") {
				continue // it is answered by a Terminate: see TestResponderWaits
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
					ch, err := rdmacm.CreateEventChannel(d.dev)
					must(t, err)
					event := func(want rdmacm.EventType) *rdmacm.ID {
						t.Helper()
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						e, err := ch.GetEvent(ctx)
						must(t, err)
						if e.Type != want {
							t.Fatalf("%v, want %v", e.Type, want)
						}
						must(t, e.Ack())
						return e.ID
					}
					l, err := ch.CreateID(rdmacm.TCP, nil)
					must(t, err)
					must(t, l.SetTransports(verbs.IWARP))
					must(t, l.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
					must(t, l.Listen(1))
					p := dialNode(t, d.net, request())
					id := event(rdmacm.ConnectRequest)
					x := &dialledID{}
					must(t, x.createQP(d))
					for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
						if !connected {
							break
						}
						attr, mask, err := id.QPAttr(to)
						must(t, err)
						must(t, x.qp.Modify(&attr, mask))
					}
					leave(p)
					<-id.Done()
					next := dialNode(t, d.net, request())
					other := event(rdmacm.ConnectRequest)
					if err := id.Accept(nil); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("accept: %v", err)
					}
					if err := id.Reject(nil); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("reject: %v", err)
					}
					if _, _, err := id.QPAttr(verbs.StateRTS); !errors.Is(err, syscall.ECONNRESET) {
						t.Errorf("QP attributes: %v", err)
					}
					must(t, x.qp.Close())
					must(t, id.Close())
					must(t, other.Reject(nil))
					if !next.frame().Rejected {
						t.Error("accepted")
					}
					must(t, other.Close())
					must(t, l.Close())
					must(t, ch.Close())
				})
			})
		}
	}
}

// Some connections have requests that never arrive, arrive slowly or are for a port without a
// listener. They do not keep out a peer with a prompt request. They delay peers at the same address
// by at most 10 ms.
func TestSlowRequestsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		start := time.Now()
		for i := range 5000 {
			p := rawDial(t, d.net)
			_, _ = p.s.Write(encode(t, request())[:i%24])
			synctest.Wait()
			if i%1000 != 999 {
				continue
			}
			s := &session{node: d, p: dialNode(t, d.net, request())}
			s.conn, err = l.Accept(t.Context())
			must(t, err)
			s.started()
			if s.p.frame().Rejected {
				t.Error("rejected")
			}
		}
		if waited := time.Since(start); waited > 5*10*time.Millisecond {
			t.Errorf("waited %v", waited)
		}
	})
}

// Malformed requests leak nothing, even if there is always another connection from the same address
// without a request.
func TestMalformedRequestsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const conns, limit = 5000, 50
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		last := rawDial(t, d.net)
		flood := func() {
			for range conns {
				next := rawDial(t, d.net)
				synctest.Wait()
				last.write(make([]byte, mpa.HeaderLen))
				synctest.Wait()
				last = next
			}
			d.net.dials = nil
		}
		flood() // allocates everything that stays
		before := heap()
		flood()
		if each := (int64(heap()) - int64(before)) / conns; each > limit {
			t.Errorf("%d bytes a connection", each)
		}
		runtime.KeepAlive(last)
	})
}

// heap returns the memory in use, in bytes.
func heap() uint64 {
	synctest.Wait()
	for range 3 { // pools are freed gradually
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The receive buffer of a stream is small before a QP has the stream, on either side, and then as
// large as TCP's.
func TestSetupBuffer(t *testing.T) {
	const most = 64 << 10
	// fill returns how much of 1 MiB a peer can send.
	fill := func(p *peer, b []byte) int {
		must(p.t, p.s.SetWriteDeadline(time.Now().Add(time.Second)))
		n, _ := p.s.Write(append(b, make([]byte, 1<<20)...))
		return n
	}
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		p := rawDial(t, d.net)
		synctest.Wait()
		if n := fill(p, encode(t, request())); n > most {
			t.Errorf("%d bytes taken by a listener", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		id, p := d.dialID(t)
		p.frame()
		if n := fill(p, encode(t, reply())); n > most {
			t.Errorf("%d bytes taken by an initiator", n)
		}
		must(t, id.connected())
		must(t, id.Reject(nil))
	})
	for _, initiator := range []bool{false, true} {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			s := d.connect(initiator, false, true)
			st := s.p.s.(*stream)
			st.mu.Lock()
			defer st.mu.Unlock()
			if st.out.bound != 0 {
				t.Errorf("a QP's stream takes %d bytes", st.out.bound)
			}
		})
	}
}
