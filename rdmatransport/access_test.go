package rdmatransport_test

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// withAccess returns a station that allows and knows only the first of two others.
func withAccess(t *testing.T) (to, friend, stranger *station) {
	lan := new(pipe.Switch)
	allowed := netip.MustParseAddr("10.0.0.2")
	to = newStationOn(t, lan.Port(), "10.0.0.1/24", &rdmatransport.Config{
		Allow: func(a netip.Addr) bool { return a == allowed },
		Identify: func(a netip.Addr) (rdmacm.Identity, bool) {
			return rdmacm.Identity{Name: "friend", PublicKey: "key"}, a == allowed
		},
	})
	return to, newStation(t, lan, "10.0.0.2/24"), newStation(t, lan, "10.0.0.3/24")
}

// denied returns the counter of requests and datagrams that were not allowed.
func (s *station) denied() uint64 { return must(s.dev.HWCounters())(s.t)["access_denied"] }

// TestAccessOfConnections: a connection request of a host that is not allowed is rejected as by an
// application, whether its port has a listener or not. Time is virtual.
func TestAccessOfConnections(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		synctest.Test(t, func(t *testing.T) {
			to, friend, stranger := withAccess(t)
			cfg := &rdmacm.Config{Transport: transport}
			l := must(rdmacm.Listen(to.dev, to.at(cmPort), cfg))(t)
			defer l.Close()

			identities := make(chan rdmacm.Identity, 1)
			go func() {
				r, err := l.Request(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				i, known := r.PeerIdentity()
				if !known {
					t.Error("the request's identity is unknown")
				}
				if c, err := r.Accept(t.Context(), cfg); err != nil {
					t.Error(err)
				} else {
					<-c.Done()
					_ = c.Close()
				}
				identities <- i
			}()
			c := must(rdmacm.Dial(within(t), friend.dev, to.at(cmPort), cfg))(t)
			if i, known := c.PeerIdentity(); known {
				t.Errorf("on a network without identities it is %+v", i)
			}
			ok(t, c.Close())
			if i := <-identities; i != (rdmacm.Identity{Name: "friend", PublicKey: "key"}) {
				t.Errorf("the identity of a request is %+v", i)
			}
			if n := to.denied(); n != 0 {
				t.Errorf("%d are counted", n)
			}

			ports, status, counted := []uint16{cmPort}, -int(syscall.ECONNREFUSED), uint64(1)
			if transport == verbs.RoCEv2 {
				// Over iWARP, TCP refuses a connection to a port without a listener.
				ports, status, counted = append(ports, cmPort+1), 28, 2
			}
			for _, port := range ports {
				_, err := rdmacm.Dial(within(t), stranger.dev, to.at(port), cfg)
				if e := (*rdmacm.EventError)(nil); !errors.As(err, &e) || e.Type != rdmacm.Rejected || e.Status != status {
					t.Errorf("port %d: %v", port, err)
				}
			}
			if n := to.denied(); n != counted {
				t.Errorf("%d are counted, want %d", n, counted)
			}
			_, err := rdmacm.Dial(within(t), to.dev, stranger.at(cmPort), cfg)
			if !errors.Is(err, syscall.EACCES) {
				t.Errorf("a connection to a host that is not allowed: %v", err)
			}
		})
	})
}

// TestAccessOfStreams: hosts that are not allowed cannot fill the places for connections without a
// request.
func TestAccessOfStreams(t *testing.T) {
	to, friend, stranger := withAccess(t)
	l := must(rdmacm.Listen(to.dev, to.at(cmPort), &rdmacm.Config{Transport: verbs.IWARP}))(t)
	defer l.Close()
	stream := func(from *station) stack.Stream {
		s := must(from.host.DialStream(within(t), netip.AddrPort{}, netip.AddrPortFrom(to.addr, cmPort)))(t)
		t.Cleanup(func() { s.Close() })
		return s
	}
	first := stream(friend)
	var last [2]stack.Stream
	for range 1100 { // there are 1024 places
		last[0], last[1] = last[1], stream(stranger)
	}
	_ = last[0].SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := last[0].Read(make([]byte, 1)); err == nil || timedOut(err) {
		t.Errorf("a connection of a host that is not allowed is not reset when another follows: %v", err)
	}
	_ = first.SetReadDeadline(time.Now())
	if _, err := first.Read(make([]byte, 1)); !timedOut(err) {
		t.Errorf("the connection of a host that is allowed: %v", err)
	}
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestAccessOfQPs: no QP or AH can have a host as its destination that is not allowed.
func TestAccessOfQPs(t *testing.T) {
	to, friend, stranger := withAccess(t)
	qp := newConnectable(t, to)
	for _, c := range []struct {
		to   *station
		want error
	}{{stranger, syscall.EACCES}, {friend, nil}} {
		ah := verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: verbs.GIDFromAddr(c.to.addr), SGIDIndex: 1, HopLimit: 1}}
		h, err := to.pd.CreateAH(&ah)
		if !errors.Is(err, c.want) {
			t.Errorf("an AH for %v: %v, want %v", c.to.addr, err, c.want)
		}
		if err == nil {
			ok(t, h.Close())
		}
		err = qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR, AHAttr: ah, PathMTU: verbs.MTU1024, DestQPNum: 17},
			verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
				verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)
		if !errors.Is(err, c.want) {
			t.Errorf("a QP for %v: %v, want %v", c.to.addr, err, c.want)
		}
	}
}

// newConnectable creates a QP in INIT.
func newConnectable(t *testing.T, s *station) *verbs.QP {
	cq := must(s.dev.CreateCQ(8, nil))(t)
	qp := must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
	t.Cleanup(func() {
		ok(t, qp.Close())
		ok(t, cq.Close())
	})
	ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	return qp
}

// TestAccessOfDatagrams: datagrams of a host that is not allowed are dropped, and the host does not
// learn the QPs of services. Time is virtual.
func TestAccessOfDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, friend, stranger := withAccess(t)
		end := udEnd(t, to)
		l := must(rdmacm.CreateSyncID(rdmacm.UDP, to.dev))(t)
		defer l.Close()
		ok(t, l.Bind(netip.AddrPortFrom(to.addr, cmPort)))
		ok(t, l.Listen(0))
		for _, port := range []uint16{cmPort, cmPort + 1} {
			id := must(rdmacm.CreateSyncID(rdmacm.UDP, stranger.dev))(t)
			defer id.Close()
			ok(t, id.ResolveAddr(within(t), netip.AddrPort{}, netip.AddrPortFrom(to.addr, port)))
			ok(t, id.ResolveRoute(within(t)))
			ok(t, id.CreateQP(stranger.pd, &verbs.QPInitAttr{Type: verbs.UD, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))
			const rejected = 2 // of SIDR: by the service's provider
			var e *rdmacm.EventError
			if err := id.Connect(within(t), nil); !errors.As(err, &e) || e.Type != rdmacm.Unreachable || e.Status != rejected {
				t.Errorf("port %d: %v", port, err)
			}
		}
		for i, from := range []*station{stranger, friend} {
			ok(t, end.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{end.mr.SGE(0, 256)}}))
			sender := udEnd(t, from)
			ah := must(from.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1,
				GRH: verbs.GRH{DGID: verbs.GIDFromAddr(to.addr), SGIDIndex: 1, HopLimit: 1}}))(t)
			ok(t, sender.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, AH: ah, RemoteQPN: end.qp.Num(), RemoteQKey: udQKey,
				SGList: []verbs.SGE{sender.mr.SGE(0, 8)}}))
			time.Sleep(time.Second)
			var wcs [2]verbs.WC
			if n := must(end.qp.RecvCQ().Poll(wcs[:]))(t); n != i {
				t.Errorf("%d datagrams of %v are received, want %d", n, from.addr, i)
			}
			ok(t, ah.Close())
		}
		if n := to.denied(); n != 3 {
			t.Errorf("%d are counted, want 3", n)
		}
	})
}
