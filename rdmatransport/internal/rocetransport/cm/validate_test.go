package cm_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// unvalidatedREQ is a request with a given source address.
func unvalidatedREQ(src netip.Addr, id uint32) *mad.REQ {
	m := kernelREQ()
	m.PrivateData = (&mad.IPCM{Src: src, SrcPort: peerPort, Dst: here}).Append(nil)
	m.Primary.LocalGID, m.LocalCommID, m.LocalQPN = src.As16(), id, id&0xffff|0x10000
	return m
}

// flood sends requests from random sources.
type flood struct {
	r    *rig
	rand *rand.Rand
	n    uint32
}

func (f *flood) send(n int) {
	for range n {
		f.n++
		var src [4]byte
		binary.BigEndian.PutUint32(src[:], f.rand.Uint32())
		src[0] = 11
		f.r.receiveFrom(netip.AddrFrom4(src), uint64(f.n), unvalidatedREQ(netip.AddrFrom4(src), f.n))
	}
}

// TestFloodStarvesNoPeer sends 100,000 requests per second from random sources, without answers.
// They need bounded memory. A real peer connects within two seconds, at any distance. That also
// holds for the smallest backlog, and for an application that does not accept unvalidated requests.
func TestFloodStarvesNoPeer(t *testing.T) {
	for _, c := range []struct {
		backlog   int
		roundTrip time.Duration
		accepts   bool
	}{{128, time.Millisecond, true}, {1, time.Millisecond, true}, {0, 100 * time.Millisecond, true}, {128, 10 * time.Millisecond, false}} {
		bubble(t, func(r *rig) {
			type message struct {
				at  time.Time
				tid uint64
				m   mad.Message
			}
			var toPeer []message
			r.onSend = func(to netip.Addr, b []byte) {
				if to == there {
					h, m := decode(t, slices.Clone(b))
					toPeer = append(toPeer, message{time.Now(), h.TID, m})
				}
			}
			var established time.Duration
			var asked time.Time
			handler := func(e *rdmacm.ConnEvent) {
				switch {
				case e.Type == rdmacm.ConnectRequest && (c.accepts || e.Route.Dst == there):
					if err := e.Conn.Accept(acceptParam(), 0); err != nil {
						t.Error(err)
					}
				case e.Type == rdmacm.Established:
					established = time.Since(asked)
				}
			}
			attr := &rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.AddrPortFrom(here, port), Backlog: c.backlog}
			if _, err := r.m.Listen(attr, handler); err != nil {
				t.Fatal(err)
			}
			f := &flood{r: r, rand: rand.New(rand.NewPCG(1, 2))}
			answered := 0
			for ms := range 2600 {
				if ms == 500 {
					asked = time.Now()
					r.receive(peerTID, kernelREQ())
				}
				f.send(100)
				time.Sleep(time.Millisecond)
				synctest.Wait()
				for r.mu.Lock(); answered < len(toPeer) && time.Since(toPeer[answered].at) >= c.roundTrip; r.mu.Lock() {
					said := toPeer[answered]
					r.mu.Unlock()
					answered++
					switch m := said.m.(type) {
					case *mad.DREQ:
						r.receive(said.tid, &mad.DREP{LocalCommID: m.RemoteCommID, RemoteCommID: m.LocalCommID})
					case *mad.REP:
						r.receive(said.tid, &mad.RTU{LocalCommID: peerID, RemoteCommID: m.LocalCommID})
					}
					synctest.Wait()
				}
				r.mu.Unlock()
				if established != 0 {
					break
				}
			}
			if established == 0 || established > 2*time.Second {
				t.Errorf("%+v: the real peer has connected after %v", c, established)
			}
			backlog := c.backlog
			if backlog == 0 {
				backlog = 1024
			}
			if n, most := r.m.Len(), backlog+1; n > most || int(r.paths.Load()) > most+64 {
				t.Errorf("%+v: %d connections and %d paths, want %d and 64 more at most", c, n, r.paths.Load(), most)
			}
			// All time out, except those that the application has not answered.
			time.Sleep(5 * time.Minute)
		})
	}
}

// TestShareOfBacklog: a peer whose address is validated, and who does not complete its connections,
// leaves room for others.
func TestShareOfBacklog(t *testing.T) {
	bubble(t, func(r *rig) {
		const backlog = 8
		attr := &rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.AddrPortFrom(here, port), Backlog: backlog}
		accepted := map[netip.Addr]int{}
		if _, err := r.m.Listen(attr, func(e *rdmacm.ConnEvent) {
			if e.Type == rdmacm.ConnectRequest {
				accepted[e.Route.Dst]++
				if err := e.Conn.Accept(acceptParam(), 0); err != nil {
					t.Error(err)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		id := uint32(0)
		r.onSend = func(to netip.Addr, b []byte) {
			h, m := decode(t, slices.Clone(b))
			if dreq, ok := m.(*mad.DREQ); ok {
				go r.receiveFrom(to, h.TID, &mad.DREP{LocalCommID: dreq.RemoteCommID, RemoteCommID: dreq.LocalCommID})
			}
		}
		for _, peer := range []netip.Addr{there, third} {
			for range 5 * backlog {
				id++
				r.receiveFrom(peer, uint64(id), unvalidatedREQ(peer, id))
				synctest.Wait()
			}
		}
		if accepted[there] != 2*backlog || accepted[third] != backlog/2 {
			t.Errorf("accepted: %v", accepted)
		}
	})
}

// TestHeldRequests checks that only the receiver of the DREQ can have a request accepted, and only
// once.
func TestHeldRequests(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 1)
		r.listen(rdmacm.UDP, 1)
		r.receive(peerTID, unvalidatedREQ(there, 1))
		first := r.event(rdmacm.ConnectRequest, 0).Conn
		r.receive(peerTID+1, unvalidatedREQ(there, 2))
		dreq, asked := next[*mad.DREQ](r)
		if dreq.RemoteCommID != 2 {
			t.Errorf("asked by %+v", dreq)
		}
		drep := &mad.DREP{LocalCommID: 2, RemoteCommID: dreq.LocalCommID}
		r.receiveFrom(third, asked.tid, drep)
		r.receive(asked.tid^1<<40, drep)
		r.receive(asked.tid+1, drep)
		r.nothing()
		r.receive(asked.tid, drep)
		if e := r.event(rdmacm.ConnectRequest, 0); e.PeerPort != peerPort || e.Dst != there {
			t.Errorf("reported as %+v", e)
		}
		r.receive(asked.tid, drep)
		r.nothing()
		if n := r.m.Counters.Held.Load(); n != 1 {
			t.Errorf("%d held", n)
		}
		// The same in the UDP port space.
		r.receive(1, kernelSIDRREQ(port))
		r.event(rdmacm.ConnectRequest, 0)
		other := kernelSIDRREQ(port)
		other.RequestID++
		r.receive(2, other)
		dreq, asked = next[*mad.DREQ](r)
		r.receive(asked.tid, &mad.DREP{LocalCommID: dreq.RemoteCommID, RemoteCommID: dreq.LocalCommID})
		r.event(rdmacm.ConnectRequest, 0)
		// A held request that the peer abandoned meanwhile is accepted like any other. Then the
		// manager has room again.
		first.Close()
		next[*mad.REJ](r)
		r.receive(peerTID+2, unvalidatedREQ(there, 3))
		r.event(rdmacm.ConnectRequest, 0)
		r.nothing()
	})
}

// TestValidatedByPeer checks a side that waits for the answer to its request. It answers a DREQ
// without a connection from its peer, and continues to wait.
func TestValidatedByPeer(t *testing.T) {
	bubble(t, func(r *rig) {
		_, req, tid := r.asked()
		dreq := &mad.DREQ{LocalCommID: 77, RemoteCommID: req.LocalCommID, RemoteQPN: req.LocalQPN}
		ask := func() {
			t.Helper()
			r.receive(5, dreq)
			if drep, s := next[*mad.DREP](r); drep.RemoteCommID != 77 || drep.LocalCommID != dreq.RemoteCommID || s.tid != 5 {
				t.Errorf("answered by %+v, transaction %d", drep, s.tid)
			}
			r.nothing()
		}
		ask()
		r.receiveFrom(third, 5, dreq) // not the connection's peer
		r.nothing()
		r.receive(tid, &mad.MRA{LocalCommID: peerID, RemoteCommID: req.LocalCommID, About: mad.AnsweredREQ, ServiceTimeout: 20})
		ask()
		r.receive(tid, kernelREP(req))
		r.event(rdmacm.ConnectResponse, 0)
		r.receive(5, dreq) // no longer: the connection has another ID at the peer
		r.nothing()

		attr := connectAttr()
		attr.PortSpace, attr.QPType = rdmacm.UDP, verbs.UD
		if _, err := r.m.Connect(attr, r.handler); err != nil {
			t.Fatal(err)
		}
		sidr, _ := next[*mad.SIDRREQ](r)
		dreq.RemoteCommID = sidr.RequestID
		ask()
	})
}
