package iwarptransport_test

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func timeIn(s int) time.Time { return time.Now().Add(time.Duration(s) * time.Second) }

// collector stores what is written to it.
type collector struct {
	net.Conn
	b []byte
}

func (c *collector) Write(b []byte) (int, error) {
	c.b = append(c.b, b...)
	return len(b), nil
}

// Both ends flood each other through streams that are always full: everything completes.
func TestBackPressure(t *testing.T) {
	for _, buffer := range []int{1, 3000, 100_000} {
		t.Run(fmt.Sprint(buffer), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const each, size = 240, 9000
				n := &network{buffer: buffer}
				a, b := newNode(t, n, nodeAddr, 1<<20, iwarp.Config{}), newNode(t, n, peerAddr, 1<<20, iwarp.Config{Markers: true})
				a.recvs, a.recvLen, b.recvs, b.recvLen = each/4, size, each/4, size
				x, y := pair(a, b)
				copy(x.buf[600_000:], pattern(0, size))
				copy(y.buf[600_000:], pattern(1, size))
				for i, e := range []*session{x, y} {
					other := []*session{y, x}[i]
					go func() {
						for k := range each {
							wr := &verbs.SendWR{
								WRID: uint64(k), Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(600_000, size)},
								RKey: other.mr.RKey(), RemoteAddr: other.mr.Addr() + 700_000,
							}
							switch k % 4 {
							case 0:
								wr.Opcode = verbs.Send
							case 1:
								wr.Opcode = verbs.RDMAWrite
							case 2:
								wr.Opcode, wr.RemoteAddr = verbs.RDMARead, other.mr.Addr()+600_000
								wr.SGList = []verbs.SGE{e.mr.SGE(800_000, size)}
							case 3:
								wr.Opcode, wr.RemoteAddr = verbs.AtomicFetchAndAdd, other.mr.Addr()+900_000
								wr.SGList = []verbs.SGE{e.mr.SGE(1_000_000, 8)}
							}
							if err := e.qp.PostSend(wr); err != nil {
								t.Error(err)
							}
						}
					}()
				}
				synctest.Wait()
				for i, e := range []*session{x, y} {
					e.statuses(e.scq, make([]verbs.WCStatus, each)...)
					e.statuses(e.rcq, make([]verbs.WCStatus, each/4)...)
					theirs := pattern(1-i, size)
					for _, at := range []int{0, (each/4 - 1) * size, 700_000, 800_000} {
						if !bytes.Equal(e.buf[at:at+size], theirs) {
							t.Errorf("data at %d differ", at)
						}
					}
				}
			})
		})
	}
}

// Connections are made and ended in every way, many at a time, and nothing remains. The end of the
// bubble shows that no goroutine remains, and closing the device that no object does.
func TestConnectionsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		a, b := newNode(t, n, nodeAddr, 4096, iwarp.Config{}), newNode(t, n, peerAddr, 4096, iwarp.Config{})
		a.recvs, a.recvLen, b.recvs, b.recvLen = 2, 64, 2, 64
		l, err := rdmacm.Listen(b.dev, nodePort, b.config())
		must(t, err)
		var accepted sync.WaitGroup
		accepted.Go(func() {
			for i := 0; ; i++ {
				c, err := l.Accept(t.Context())
				if err != nil {
					return
				}
				accepted.Go(func() {
					_ = c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send})
					if i%3 == 0 {
						<-c.Done()
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		})
		var dialled sync.WaitGroup
		for i := range 300 {
			dialled.Go(func() {
				c, err := rdmacm.Dial(t.Context(), a.dev, peerAddr+nodePort, a.config())
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send}, &verbs.SendWR{Opcode: verbs.RDMARead})
				switch i % 4 {
				case 0:
					_ = c.ID().CloseQP()
				case 1:
					_ = c.QP().Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState)
				case 2:
					_ = c.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		dialled.Wait()
		must(t, l.Close())
		accepted.Wait()
		drain(t, a.scq)
		drain(t, a.rcq)
		drain(t, b.scq)
		drain(t, b.rcq)
	})
}

// An idle connection takes little memory, even after it was busy.
func TestIdleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const conns, limit, size = 200, 40 << 10, 60_000
		d := newNode(t, &network{}, nodeAddr, size, iwarp.Config{})
		d.cap = verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
		var p []*peer
		before := heap()
		for range conns {
			s := d.dial(reply())
			for range 3 {
				// In two parts, so that the receiver must assemble it.
				fpdu := s.p.fpdu(writeSegment(d.mr.RKey(), d.mr.Addr(), make([]byte, size)))
				s.p.write(fpdu[:size-1])
				synctest.Wait()
				s.p.write(fpdu[size-1:])
				synctest.Wait()
			}
			p = append(p, s.p)
		}
		for _, p := range p {
			st := p.s.(*stream)
			st.mu.Lock()
			st.in.buf, st.out.buf, st.in.r, st.in.w, st.out.r, st.out.w = nil, nil, 0, 0, 0, 0
			st.mu.Unlock()
			p.got = nil
		}
		time.Sleep(10 * time.Second)
		if each := (heap() - before) / conns; each > limit {
			t.Errorf("%d bytes a connection", each)
		}
		runtime.KeepAlive(p)
	})
}

// A listener is flooded with connections without a request, or with a malformed one. It keeps a
// bounded number of them for a bounded time, and then accepts as before.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		cfg := d.config()
		cfg.Backlog = 16
		l, err := rdmacm.Listen(d.dev, nodePort, cfg)
		must(t, err)
		defer l.Close()
		var peers []*peer
		open := func() (n int) {
			synctest.Wait()
			for _, p := range peers {
				if p.s.(*stream).open() {
					n++
				}
			}
			return n
		}
		for i := range 3000 {
			p := rawDial(t, d.net)
			if i%2 == 0 {
				_, _ = p.s.Write([]byte("MPA ID Re")) // it may already be refused
			}
			peers = append(peers, p)
		}
		if n := open(); n > 1024 {
			t.Errorf("%d half-open connections are kept", n)
		}
		time.Sleep(30 * time.Second)
		if n := open(); n != 0 {
			t.Errorf("%d half-open connections are kept after 30 s", n)
		}
		for i := range 500 {
			p := rawDial(t, d.net)
			_, _ = p.s.Write(pattern(i, 600))
			peers = append(peers, p)
		}
		if n := open(); n != 0 {
			t.Errorf("%d connections with garbage are kept", n)
		}
		peers = nil
		for range 100 { // valid, but never answered
			peers = append(peers, dialNode(t, d.net, request()))
		}
		synctest.Wait()
		rejected := 0
		for _, p := range peers {
			if p.s.(*stream).in.len() > 0 && p.frame().Rejected {
				rejected++
			}
		}
		if rejected != 84 {
			t.Errorf("%d of 100 requests are rejected with a backlog of 16", rejected)
		}
		time.Sleep(30 * time.Second) // although the peers keep the stream open
		if n := open(); n != 16 {
			t.Errorf("%d requests are kept with a backlog of 16", n)
		}
		for range 16 {
			r, err := l.Request(t.Context())
			must(t, err)
			must(t, r.Reject(nil))
		}
		if n := d.counter("iwarp_connects_refused"); n != 3000+500+84 {
			t.Errorf("%d connections counted as refused", n)
		}
		p := dialNode(t, d.net, request())
		r, err := l.Request(t.Context())
		must(t, err)
		conn, err := r.Accept(t.Context(), cfg)
		must(t, err)
		s := &session{node: d, conn: conn, p: p}
		s.started()
		if p.frame().Rejected {
			t.Error("rejected")
		}
	})
}

// A peer that has requested many READs leaves in the middle. Due responses are dropped with the
// stream.
func TestPeerLeavesWithResponsesDue(t *testing.T) {
	bubble(t, &network{buffer: 2000}, 1<<16, func(t *testing.T, d *node) {
		var sessions []*session
		for range 20 {
			s := d.dial(reply())
			for range 16 {
				s.p.send(s.p.readRequest(rdmap.ReadRequestHeader{Size: 1 << 16, SourceSTag: d.mr.RKey(), SourceTO: d.mr.Addr()}))
				synctest.Wait()
			}
			sessions = append(sessions, s)
		}
		for i, s := range sessions {
			if i%2 == 0 {
				s.p.s.(*stream).Abort()
			} else {
				s.p.s.Close()
			}
		}
		for _, s := range sessions {
			<-s.conn.Done()
		}
	})
}
