package cm_test

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const timedOut = -int(syscall.ETIMEDOUT)

func TestAccept(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 10)
		req := kernelREQ()
		r.receive(peerTID, req)
		e := r.event(rdmacm.ConnectRequest, 0)
		if e.Src != here || e.Dst != there || e.LocalPort != port || e.PeerPort != peerPort || e.PortNum != 1 || e.GIDIndex != 1 {
			t.Errorf("request from %v:%d to %v:%d, %+v", e.Dst, e.PeerPort, e.Src, e.LocalPort, e.Route)
		}
		p := e.Param
		if p.ResponderResources != 5 || p.InitiatorDepth != 3 || p.RetryCount != 7 || p.RNRRetryCount != 6 || p.QPNum != peerQPN ||
			len(p.PrivateData) != 56 || !bytes.HasPrefix(p.PrivateData, []byte("hello\x00")) {
			t.Errorf("parameters %+v: want the depths swapped and all of the private data", p)
		}
		if err := e.Conn.Accept(acceptParam(), 0); err != nil {
			t.Fatal(err)
		}
		rep, s := next[*mad.REP](r)
		if s.to != there || s.tid != peerTID {
			t.Errorf("REP to %v, transaction %d", s.to, s.tid)
		}
		if rep.RemoteCommID != peerID || rep.LocalCommID == 0 || rep.LocalQPN != ourQPN || rep.LocalCAGUID != ourGUID {
			t.Errorf("REP %+v", rep)
		}
		if rep.ResponderResources != 4 || rep.InitiatorDepth != 2 || rep.RNRRetryCount != 7 || rep.TargetAckDelay != 15 {
			t.Errorf("REP %+v", rep)
		}
		if rep.FailoverAccepted != 0 || !bytes.HasPrefix(rep.PrivateData, []byte("welcome\x00")) {
			t.Errorf("REP %+v", rep)
		}
		checkQPAttr(t, e.Conn, verbs.QPAttr{
			PathMTU: verbs.MTU1024, DestQPNum: peerQPN, RQPSN: rep.StartingPSN, SQPSN: 0xa3f754,
			MaxDestRDAtomic: 4, MaxRDAtomic: 2, Timeout: 19, RetryCnt: 7, RNRRetry: 6,
		}, 0xfd265)
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		r.event(rdmacm.Established, 0)
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		time.Sleep(time.Hour)
		r.nothing()
	})
}

// checkQPAttr compares the attributes and masks of a QP's three transitions with want.
func checkQPAttr(t *testing.T, c rdmacm.ProviderConn, want verbs.QPAttr, flow uint32) {
	t.Helper()
	attr := func(to verbs.QPState, mask verbs.QPAttrMask) verbs.QPAttr {
		a, m, err := c.QPAttr(to)
		if err != nil || m != mask || a.QPState != to {
			t.Fatalf("%v: %+v, mask %v, %v; want mask %v", to, a, m, err, mask)
		}
		return a
	}
	a := attr(verbs.StateInit, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags)
	if a.PortNum != 1 || a.QPAccessFlags != verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic|
		verbs.AccessFlushGlobal|verbs.AccessFlushPersistent {
		t.Errorf("INIT: %+v", a)
	}
	a = attr(verbs.StateRTR, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer)
	g := a.AHAttr.GRH
	if a.PathMTU != want.PathMTU || a.DestQPNum != want.DestQPNum || a.RQPSN != want.RQPSN || a.MinRNRTimer != 0 ||
		a.MaxDestRDAtomic != want.MaxDestRDAtomic {
		t.Errorf("RTR: %+v, want %+v", a, want)
	}
	if !a.AHAttr.IsGlobal || a.AHAttr.PortNum != 1 {
		t.Errorf("RTR: %+v", a)
	}
	if g.DGID.Addr() != there || g.SGIDIndex != 1 || g.FlowLabel != flow || g.HopLimit != 64 {
		t.Errorf("RTR: %+v, want flow label %#x", g, flow)
	}
	a = attr(verbs.StateRTS, verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
		verbs.QPAttrMaxQPRDAtomic)
	if a.SQPSN != want.SQPSN || a.Timeout != want.Timeout || a.RetryCnt != want.RetryCnt || a.RNRRetry != want.RNRRetry ||
		a.MaxRDAtomic != want.MaxRDAtomic {
		t.Errorf("RTS: %+v, want %+v", a, want)
	}
}

func TestRepeatedREQ(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 10)
		r.receive(peerTID, kernelREQ())
		c := r.event(rdmacm.ConnectRequest, 0).Conn
		r.nothing() // an MRA is only sent after the second request
		for range 3 {
			r.receive(peerTID, kernelREQ())
			if m, s := next[*mad.MRA](r); m.About != mad.AnsweredREQ || m.RemoteCommID != peerID || m.ServiceTimeout != 24 ||
				s.tid != peerTID {
				t.Errorf("MRA %+v", m)
			}
		}
		if err := c.Accept(acceptParam(), 0); err != nil {
			t.Fatal(err)
		}
		first, _ := next[*mad.REP](r)
		r.receive(peerTID, kernelREQ())
		if again, _ := next[*mad.REP](r); again.LocalCommID != first.LocalCommID || again.StartingPSN != first.StartingPSN {
			t.Errorf("REP %+v, then %+v", first, again)
		}
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: first.LocalCommID})
		r.event(rdmacm.Established, 0)
		r.receive(peerTID, kernelREQ()) // late
		r.nothing()
	})
}

func TestREPWithoutRTU(t *testing.T) {
	bubble(t, func(r *rig) {
		_, rep := r.accepted()
		for i := range 15 {
			time.Sleep(4096 * time.Millisecond)
			if again, s := next[*mad.REP](r); s.at != time.Duration(i+1)*4096*time.Millisecond || again.LocalCommID != rep.LocalCommID {
				t.Errorf("REP %d at %v", i+2, s.at)
			}
			r.nothing()
		}
		time.Sleep(4096 * time.Millisecond)
		if rej, _ := next[*mad.REJ](r); rej.Reason != mad.Timeout || rej.RemoteCommID != peerID || rej.LocalCommID != rep.LocalCommID {
			t.Errorf("REJ %+v", rej)
		}
		r.event(rdmacm.Unreachable, timedOut)
		if n := r.m.Len(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
		time.Sleep(time.Hour)
		r.nothing()
	})
}

func TestMRAForREP(t *testing.T) {
	bubble(t, func(r *rig) {
		_, rep := r.accepted()
		mra := &mad.MRA{LocalCommID: peerID, RemoteCommID: rep.LocalCommID, About: mad.AnsweredREP, ServiceTimeout: 24}
		r.receive(peerTID, mra)
		r.receive(peerTID, mra) // once is enough
		time.Sleep(67 * time.Second)
		r.nothing()
		time.Sleep(time.Second)
		if _, s := next[*mad.REP](r); s.at != 65536*time.Millisecond+2048*time.Millisecond {
			t.Errorf("REP again at %v", s.at)
		}
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		r.event(rdmacm.Established, 0)
		r.nothing()
	})
}

func TestNotify(t *testing.T) {
	bubble(t, func(r *rig) {
		c, rep := r.accepted()
		if err := c.Notify(); err != nil {
			t.Fatal(err)
		}
		r.event(rdmacm.Established, 0)
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		if err := c.Notify(); !errors.Is(err, syscall.EISCONN) {
			t.Errorf("a second time: %v", err)
		}
		time.Sleep(time.Hour)
		r.nothing()
	})
}

func TestReject(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 10)
		r.receive(peerTID, kernelREQ())
		c := r.event(rdmacm.ConnectRequest, 0).Conn
		if err := c.Reject(bytes.Repeat([]byte{7}, 149)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("149 bytes: %v", err)
		}
		if err := c.Reject(bytes.Repeat([]byte{7}, 148)); err != nil {
			t.Fatal(err)
		}
		rej, s := next[*mad.REJ](r)
		if rej.Reason != mad.ConsumerDefined || rej.RemoteCommID != peerID || rej.About != mad.AnsweredREQ || s.tid != peerTID ||
			!bytes.Equal(rej.PrivateData, bytes.Repeat([]byte{7}, 148)) {
			t.Errorf("REJ %+v", rej)
		}
		if err := c.Accept(acceptParam(), 0); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Accept after Reject: %v", err)
		}
		c.Close()
		if n := r.m.Len(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
		if r.paths.Load() != 1 { // the REJ may wait in it for neighbour resolution
			t.Errorf("%d paths are kept, want that of the connection", r.paths.Load())
		}
		r.nothing()
	})
}

// TestRefused covers every reason to reject a REQ without asking the application.
func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*mad.REQ)
		want   mad.Reason
	}{
		"no listener":                 {func(m *mad.REQ) { m.ServiceID++ }, mad.InvalidServiceID},
		"other port space":            {func(m *mad.REQ) { m.ServiceID = mad.ServiceID(uint16(rdmacm.IB), port) }, mad.InvalidServiceID},
		"listener at another address": {func(m *mad.REQ) { m.ServiceID = mad.ServiceID(uint16(rdmacm.TCP), port+1) }, mad.InvalidServiceID},
		"other address":               {func(m *mad.REQ) { m.ServiceID = mad.ServiceID(uint16(rdmacm.TCP), 99) }, mad.ConsumerDefined},
		"datagram listener":           {func(m *mad.REQ) { m.ServiceID = mad.ServiceID(uint16(rdmacm.UDP), 98) }, mad.ConsumerDefined},
		"IP CM version":               {func(m *mad.REQ) { m.PrivateData[0] = 0x10 }, mad.ConsumerDefined},
		"IP version":                  {func(m *mad.REQ) { m.PrivateData[1] = 0 }, mad.ConsumerDefined},
		"IP CM source":                {func(m *mad.REQ) { m.PrivateData[19]++ }, mad.InvalidGID},
		"IP CM destination":           {func(m *mad.REQ) { m.PrivateData[35]++ }, mad.InvalidGID},
		"source GID":                  {func(m *mad.REQ) { m.Primary.LocalGID[15]++ }, mad.InvalidGID},
		"destination GID":             {func(m *mad.REQ) { m.Primary.RemoteGID[15]++ }, mad.InvalidGID},
		"reserved transport":          {func(m *mad.REQ) { m.ServiceType = 2 }, mad.InvalidTransportType},
		"management QP":               {func(m *mad.REQ) { m.LocalQPN = 1 }, mad.NoQP},
		"MTU 0":                       {func(m *mad.REQ) { m.MTU = 0 }, mad.InvalidMTU},
		"MTU 15":                      {func(m *mad.REQ) { m.MTU = 15 }, mad.InvalidMTU},
		"MTU of the peer":             {func(m *mad.REQ) { m.MTU = 5 }, mad.InvalidMTU},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.listen(rdmacm.TCP, 10)
				for space, at := range map[rdmacm.PortSpace]netip.AddrPort{
					rdmacm.TCP: netip.AddrPortFrom(third, 99), rdmacm.UDP: netip.AddrPortFrom(here, 98),
				} {
					if _, err := r.m.Listen(&rdmacm.ListenAttr{PortSpace: space, Addr: at}, r.handler); err != nil {
						t.Fatal(err)
					}
				}
				req := kernelREQ()
				tc.change(req)
				for range 2 {
					r.receive(peerTID, req)
					rej, s := next[*mad.REJ](r)
					if rej.Reason != tc.want || rej.RemoteCommID != peerID || rej.About != mad.AnsweredREQ || s.tid != peerTID ||
						s.to != there {
						t.Errorf("REJ %+v, want reason %d", rej, tc.want)
					}
				}
				if n := r.m.Len(); n != 0 {
					t.Errorf("%d connections are kept", n)
				}
				r.nothing()
			})
		})
	}
}

// TestNoGID checks that no connection is possible to an address that is not in the GID table.
func TestNoGID(t *testing.T) {
	bubble(t, func(r *rig) {
		r.gid = -1
		r.listen(rdmacm.TCP, 10)
		r.listen(rdmacm.UDP, 10)
		r.receive(peerTID, kernelREQ())
		if rej, _ := next[*mad.REJ](r); rej.Reason != mad.InvalidGID {
			t.Errorf("REJ %+v", rej)
		}
		r.receive(peerTID, kernelSIDRREQ(port))
		r.nothing()
		if n := r.m.Counters.Dropped.Load(); n != 1 {
			t.Errorf("%d requests dropped, want 1", n)
		}
	})
}

func TestAlternatePathsAreRefused(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 10)
		req := kernelREQ()
		req.Alternate = req.Primary
		r.receive(peerTID, req)
		c := r.event(rdmacm.ConnectRequest, 0).Conn
		if err := c.Accept(acceptParam(), 0); err != nil {
			t.Fatal(err)
		}
		rep, _ := next[*mad.REP](r)
		if rep.FailoverAccepted != 1 {
			t.Errorf("failover accepted: %d, want 1, not supported", rep.FailoverAccepted)
		}
		r.receive(peerTID, &mad.RTU{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		r.event(rdmacm.Established, 0)
		lap := &mad.LAP{LocalCommID: peerID, RemoteCommID: rep.LocalCommID, RemoteQPN: ourQPN}
		r.receive(77, lap)
		if apr, s := next[*mad.APR](r); apr.Status != mad.APRUnsupported || apr.LocalCommID != rep.LocalCommID ||
			apr.RemoteCommID != peerID || s.tid != 77 {
			t.Errorf("APR %+v", apr)
		}
		lap.RemoteCommID++
		r.receive(78, lap)
		if apr, _ := next[*mad.APR](r); apr.Status != mad.APRInvalidCommID {
			t.Errorf("APR %+v", apr)
		}
		r.receive(79, &mad.APR{LocalCommID: peerID, RemoteCommID: rep.LocalCommID})
		r.nothing()
	})
}

func TestPeerGivesUp(t *testing.T) {
	info := []byte{0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2} // peerGUID
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 10)
		r.receive(peerTID, kernelREQ())
		r.event(rdmacm.ConnectRequest, 0)
		// The peer never got the local ID.
		r.receive(peerTID, &mad.REJ{LocalCommID: peerID, About: mad.AnsweredOther, Reason: mad.Timeout, InfoLen: 8, Info: info})
		r.event(rdmacm.Rejected, 4)
		if n := r.m.Len(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
		// The same message from another peer is ignored.
		r.receive(peerTID, kernelREQ())
		r.event(rdmacm.ConnectRequest, 0)
		r.receiveFrom(third, peerTID, &mad.REJ{LocalCommID: peerID, About: mad.AnsweredOther, Reason: mad.Timeout, InfoLen: 8, Info: info})
		r.nothing()
	})
}

func TestBacklog(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.TCP, 2)
		req := func(i int) *mad.REQ {
			m := kernelREQ()
			m.LocalCommID, m.LocalQPN = uint32(100+i), uint32(200+i)
			return m
		}
		var conns []rdmacm.ProviderConn
		for i := range 2 {
			r.receive(peerTID, req(i))
			conns = append(conns, r.event(rdmacm.ConnectRequest, 0).Conn)
		}
		// Two more from validated peers are accepted, and no more.
		for i := 5; i < 8; i++ {
			r.receive(peerTID, req(i))
			dreq, asked := next[*mad.DREQ](r)
			r.receive(asked.tid, &mad.DREP{LocalCommID: dreq.RemoteCommID, RemoteCommID: dreq.LocalCommID})
			if i < 7 {
				r.event(rdmacm.ConnectRequest, 0)
			}
		}
		r.nothing() // dropped: the peer retransmits
		if n := r.m.Counters.Dropped.Load(); n != 1 {
			t.Errorf("%d dropped", n)
		}
		if err := conns[0].Accept(acceptParam(), 0); err != nil {
			t.Fatal(err)
		}
		rep, _ := next[*mad.REP](r)
		r.receive(peerTID, req(2))
		next[*mad.DREQ](r) // its address is not validated
		r.receive(peerTID, &mad.RTU{LocalCommID: 100, RemoteCommID: rep.LocalCommID})
		r.event(rdmacm.Established, 0)
		r.receive(peerTID, req(2))
		r.event(rdmacm.ConnectRequest, 0)
		conns[1].Close()
		next[*mad.REJ](r)
		r.receive(peerTID, req(3))
		r.event(rdmacm.ConnectRequest, 0)
		r.receive(peerTID, req(4))
		next[*mad.DREQ](r)
		r.nothing()
	})
}

func TestListenErrors(t *testing.T) {
	bubble(t, func(r *rig) {
		at := func(s string) *rdmacm.ListenAttr {
			return &rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.MustParseAddrPort(s)}
		}
		l, err := r.m.Listen(at("10.77.0.9:5"), r.handler)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.m.Listen(at("10.77.0.9:5"), r.handler); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("the same address: %v", err)
		}
		if _, err := r.m.Listen(at("10.77.0.9:0"), r.handler); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("port 0: %v", err)
		}
		if _, err := r.m.Listen(at("0.0.0.0:5"), r.handler); err != nil {
			t.Errorf("all addresses in addition to one: %v", err)
		}
		both := &rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.AddrPortFrom(netip.Addr{}, 5)}
		if _, err := r.m.Listen(both, r.handler); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("all addresses twice: %v", err)
		}
		l.Close()
		l.Close()
		if _, err := r.m.Listen(at("10.77.0.9:5"), r.handler); err != nil {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestListenAFOnly checks that two listeners share a port, each for one IP version, and get only
// its requests.
func TestListenAFOnly(t *testing.T) {
	for _, order := range [][]string{{"0.0.0.0", "::"}, {"::", "0.0.0.0"}} {
		bubble(t, func(r *rig) {
			listen := func(addr netip.Addr, h rdmacm.Handler) error {
				_, err := r.m.Listen(&rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.AddrPortFrom(addr, port)}, h)
				return err
			}
			for _, addr := range order {
				h := r.handler
				if addr == "::" {
					h = func(e *rdmacm.ConnEvent) {
						t.Errorf("%v: a request from %v arrived at the listener at ::", order, e.Dst)
					}
				}
				if err := listen(netip.MustParseAddr(addr), h); err != nil {
					t.Errorf("%v: listen at %s: %v", order, addr, err)
				}
				if err := listen(netip.MustParseAddr(addr), h); !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("%v: a second listener at %s: %v", order, addr, err)
				}
				if err := listen(netip.Addr{}, h); !errors.Is(err, syscall.EADDRINUSE) {
					t.Errorf("%v: a listener for both in addition to %s: %v", order, addr, err)
				}
			}
			r.receive(peerTID, kernelREQ())
			r.event(rdmacm.ConnectRequest, 0)
		})
	}
}

// TestFlood checks that requests from unvalidated peers need bounded memory.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.close()
		r.onSend = func(netip.Addr, []byte) {}
		r.listen(rdmacm.TCP, 100)
		for i := range 50_000 {
			src := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
			m := kernelREQ()
			ip := mad.IPCM{Src: src, Dst: here}
			m.PrivateData = ip.Append(nil)
			m.Primary.LocalGID, m.LocalCommID = src.As16(), uint32(i)
			r.receiveFrom(src, uint64(i), m)
			m.ServiceID++ // no listener
			r.receiveFrom(src, uint64(i), m)
			r.receiveFrom(src, uint64(i), &mad.DREQ{LocalCommID: uint32(i), RemoteCommID: uint32(i)})
		}
		synctest.Wait()
		if r.m.Len() != 100 || len(r.events) != 100 || r.paths.Load() > 100+64 {
			t.Errorf("%d connections, %d events, %d paths; want 100, 100, at most 164", r.m.Len(), len(r.events), r.paths.Load())
		}
		// An application that accepts at once never has more connections than this.
		accept := func(e *rdmacm.ConnEvent) {
			if e.Type == rdmacm.ConnectRequest {
				if err := e.Conn.Accept(acceptParam(), 0); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := r.m.Listen(&rdmacm.ListenAttr{PortSpace: rdmacm.TCP, Addr: netip.AddrPortFrom(here, 99)}, accept); err != nil {
			t.Fatal(err)
		}
		for i := range 50_000 {
			src := netip.AddrFrom4([4]byte{12, byte(i >> 16), byte(i >> 8), byte(i)})
			m := kernelREQ()
			ip := mad.IPCM{Src: src, Dst: here}
			m.PrivateData = ip.Append(nil)
			m.Primary.LocalGID, m.ServiceID = src.As16(), mad.ServiceID(uint16(rdmacm.TCP), 99)
			r.receiveFrom(src, uint64(i), m)
		}
		if n := r.m.Len(); n != 100+1024 {
			t.Errorf("%d connections, want 100 of a backlog of 100, and 1024 of the default", n)
		}
		time.Sleep(10 * time.Minute) // they time out
		if n := r.m.Len(); n != 100 {
			t.Errorf("%d connections, want 100", n)
		}
	})
}
