package cm_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func TestConnect(t *testing.T) {
	bubble(t, func(r *rig) {
		c, req, tid := r.asked()
		ip, err := mad.ParseIPCM(req.PrivateData)
		if err != nil || ip.Src != here || ip.Dst != there || ip.SrcPort != 40000 ||
			!bytes.HasPrefix(req.PrivateData[mad.IPCMLen:], []byte("hello\x00")) {
			t.Errorf("private data % x", req.PrivateData)
		}
		want := mad.REQ{
			LocalCommID: req.LocalCommID, ServiceID: 0x1060000 + port, LocalCAGUID: ourGUID, LocalQPN: ourQPN,
			ResponderResources: 4, InitiatorDepth: 2, RemoteResponseTimeout: 20, LocalResponseTimeout: 20,
			StartingPSN: req.StartingPSN, RetryCount: 7, PKey: 0xffff, MTU: 3, RNRRetryCount: 7, MaxCMRetries: 15,
			Primary: mad.Path{LocalLID: 0xffff, RemoteLID: 0xffff, LocalGID: here.As16(), RemoteGID: there.As16(),
				FlowLabel: req.Primary.FlowLabel, HopLimit: 64, AckTimeout: 19},
		}
		got := *req
		got.PrivateData = nil
		if got.LocalCommID == 0 || !equalREQ(got, want) {
			t.Errorf("REQ\n%+v, want\n%+v", got, want)
		}
		r.receive(tid, kernelREP(req))
		e := r.event(rdmacm.ConnectResponse, 0)
		p := e.Param
		if e.Conn != c || p.ResponderResources != 1 || p.InitiatorDepth != 6 || p.RNRRetryCount != 5 || p.QPNum != peerQPN ||
			len(p.PrivateData) != 196 || !bytes.HasPrefix(p.PrivateData, []byte("welcome\x00")) {
			t.Errorf("response %+v", p)
		}
		checkQPAttr(t, c, verbs.QPAttr{
			PathMTU: verbs.MTU1024, DestQPNum: peerQPN, RQPSN: req.StartingPSN, SQPSN: 0xdfd224,
			MaxDestRDAtomic: 1, MaxRDAtomic: 6, Timeout: 19, RetryCnt: 7, RNRRetry: 5,
		}, req.Primary.FlowLabel)
		r.receive(tid, kernelREP(req))
		if m, _ := next[*mad.MRA](r); m.About != mad.AnsweredREP || m.RemoteCommID != peerID || m.LocalCommID != req.LocalCommID {
			t.Errorf("MRA %+v", m)
		}
		if err := c.Establish(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if m, s := next[*mad.RTU](r); m.LocalCommID != req.LocalCommID || m.RemoteCommID != peerID || s.tid != tid {
				t.Errorf("RTU %+v", m)
			}
			r.nothing()
			r.receive(tid, kernelREP(req)) // the RTU was lost
		}
		next[*mad.RTU](r)
		if err := c.Establish(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Establish twice: %v", err)
		}
		time.Sleep(time.Hour)
		r.nothing()
	})
}

func equalREQ(a, b mad.REQ) bool {
	var x, y [mad.Size]byte
	mad.Encode(&x, 1, &a)
	mad.Encode(&y, 1, &b)
	return x == y
}

func TestREQWithoutREP(t *testing.T) {
	bubble(t, func(r *rig) {
		_, req, tid := r.asked()
		for i := range 15 {
			time.Sleep(6144 * time.Millisecond)
			if again, s := next[*mad.REQ](r); s.at != time.Duration(i+1)*6144*time.Millisecond || s.tid != tid || !equalREQ(*req, *again) {
				t.Errorf("REQ %d at %v: %+v", i+2, s.at, again)
			}
			r.nothing()
		}
		time.Sleep(6144 * time.Millisecond)
		if rej, _ := next[*mad.REJ](r); rej.Reason != mad.Timeout || rej.LocalCommID != req.LocalCommID || rej.InfoLen != 8 ||
			!bytes.HasPrefix(rej.Info, []byte{2, 0, 0, 0xff, 0xfe, 0, 0, 1}) {
			t.Errorf("REJ %+v", rej)
		}
		r.event(rdmacm.Unreachable, timedOut)
		// The peer has missed all messages: its REP arrives now.
		r.receive(tid, kernelREP(req))
		if rej, _ := next[*mad.REJ](r); rej.Reason != mad.InvalidCommID || rej.About != mad.AnsweredREP || rej.RemoteCommID != peerID {
			t.Errorf("REJ %+v", rej)
		}
		r.nothing()
	})
}

func TestAckTimeoutOption(t *testing.T) {
	bubble(t, func(r *rig) {
		attr := connectAttr()
		attr.AckTimeout = 14
		c, err := r.m.Connect(attr, r.handler)
		if err != nil {
			t.Fatal(err)
		}
		req, s := next[*mad.REQ](r)
		if req.Primary.AckTimeout != 16 { // the device's delay of 15, and 14 within half of it
			t.Errorf("ACK timeout %d in the REQ", req.Primary.AckTimeout)
		}
		r.receive(s.tid, kernelREP(req))
		r.event(rdmacm.ConnectResponse, 0)
		if a, _, err := c.QPAttr(verbs.StateRTS); err != nil || a.Timeout != 14 {
			t.Errorf("timeout %d, %v; want 14", a.Timeout, err)
		}
	})
}

func TestMRAForREQ(t *testing.T) {
	bubble(t, func(r *rig) {
		_, req, tid := r.asked()
		mra := &mad.MRA{LocalCommID: peerID, RemoteCommID: req.LocalCommID, About: mad.AnsweredREQ, ServiceTimeout: 22}
		r.receive(tid+1, mra) // another transaction
		r.receiveFrom(third, tid, mra)
		time.Sleep(6145 * time.Millisecond)
		next[*mad.REQ](r)
		r.receive(tid, mra)
		time.Sleep(18 * time.Second) // 2^(22-8) + 2^(19-8) ms
		r.nothing()
		time.Sleep(time.Second)
		next[*mad.REQ](r)
		mra.ServiceTimeout = 31 // two hours, limited to a minute
		r.receive(tid, mra)
		time.Sleep(70 * time.Second)
		next[*mad.REQ](r)
		r.receive(tid, kernelREP(req))
		r.event(rdmacm.ConnectResponse, 0)
		r.nothing()
	})
}

func TestRejected(t *testing.T) {
	bubble(t, func(r *rig) {
		for _, reason := range []mad.Reason{mad.InvalidServiceID, mad.ConsumerDefined, mad.StaleConnection, 99} {
			c, req, tid := r.asked()
			rej := &mad.REJ{RemoteCommID: req.LocalCommID, About: mad.AnsweredREQ, Reason: reason, PrivateData: []byte("no")}
			for _, forged := range []*mad.REJ{
				{RemoteCommID: req.LocalCommID + 1, Reason: reason}, {RemoteCommID: 0, Reason: reason},
				{RemoteCommID: req.LocalCommID, About: mad.AnsweredREP, Reason: reason},
			} {
				r.receive(tid, forged)
			}
			r.receive(tid+1, rej)
			r.receiveFrom(third, tid, rej)
			r.nothing()
			r.receive(tid, rej)
			e := r.event(rdmacm.Rejected, int(reason))
			if e.Conn != c || len(e.Param.PrivateData) != 148 || !bytes.HasPrefix(e.Param.PrivateData, []byte("no\x00")) {
				t.Errorf("%+v", e.Param)
			}
			r.receive(tid, rej)
			c.Close()
		}
		time.Sleep(time.Hour)
		r.nothing()
	})
}

// TestForgedREP checks that a REP counts only if it answers the REQ and comes from the host of the
// REQ.
func TestForgedREP(t *testing.T) {
	bubble(t, func(r *rig) {
		_, req, tid := r.asked()
		r.receive(tid+1, kernelREP(req))
		r.receiveFrom(third, tid, kernelREP(req))
		m := kernelREP(req)
		m.LocalQPN = 1
		r.receive(tid, m)
		r.nothing()
		r.receive(tid, kernelREP(req))
		r.event(rdmacm.ConnectResponse, 0)
		m = kernelREP(req)
		m.LocalCommID++
		r.receive(tid, m)
		r.nothing()
	})
}

func TestRejectOfREP(t *testing.T) {
	for name, refuse := range map[string]func(rdmacm.ProviderConn) error{
		"Reject": func(c rdmacm.ProviderConn) error { return c.Reject([]byte("bad")) },
		"Close":  func(c rdmacm.ProviderConn) error { c.Close(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				c, req, tid := r.asked()
				r.receive(tid, kernelREP(req))
				r.event(rdmacm.ConnectResponse, 0)
				if err := refuse(c); err != nil {
					t.Fatal(err)
				}
				if rej, _ := next[*mad.REJ](r); rej.Reason != mad.ConsumerDefined || rej.About != mad.AnsweredREP ||
					rej.LocalCommID != req.LocalCommID || rej.RemoteCommID != peerID {
					t.Errorf("REJ %+v", rej)
				}
				if n := r.m.Len(); n != 0 {
					t.Errorf("%d connections are kept", n)
				}
				r.nothing()
			})
		})
	}
}

func TestConnectErrors(t *testing.T) {
	bubble(t, func(r *rig) {
		for name, change := range map[string]func(*rdmacm.ConnectAttr){
			"private data": func(a *rdmacm.ConnectAttr) { a.Param.PrivateData = make([]byte, cm.MaxREQPrivate+1) },
			"UD data": func(a *rdmacm.ConnectAttr) {
				a.PortSpace, a.Param.PrivateData = rdmacm.UDP, make([]byte, cm.MaxSIDRPrivate+1)
			},
			"QP number":   func(a *rdmacm.ConnectAttr) { a.Param.QPNum = 1 },
			"25 bits":     func(a *rdmacm.ConnectAttr) { a.Param.QPNum = 1 << 24 },
			"MTU":         func(a *rdmacm.ConnectAttr) { a.MTU = 6 },
			"ACK timeout": func(a *rdmacm.ConnectAttr) { a.AckTimeout = 32 },
			"QP type":     func(a *rdmacm.ConnectAttr) { a.QPType = verbs.UD },
		} {
			attr := connectAttr()
			change(attr)
			if _, err := r.m.Connect(attr, r.handler); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		attr := connectAttr()
		attr.Param.PrivateData = make([]byte, cm.MaxREQPrivate)
		if _, err := r.m.Connect(attr, r.handler); err != nil {
			t.Errorf("the most private data: %v", err)
		}
	})
}

// TestStaleREP checks a REP with the QP of another connection.
func TestStaleREP(t *testing.T) {
	bubble(t, func(r *rig) {
		_, oldID, _ := r.established()
		_, req, tid := r.asked()
		rep := kernelREP(req)
		rep.LocalCommID++
		r.receive(tid, rep)
		if rej, _ := next[*mad.REJ](r); rej.Reason != mad.StaleConnection || rej.About != mad.AnsweredREP {
			t.Errorf("REJ %+v", rej)
		}
		if d, _ := next[*mad.DREQ](r); d.LocalCommID != oldID {
			t.Errorf("DREQ %+v, want of the old connection %#x", d, oldID)
		}
		r.nothing()
	})
}

func TestSIDR(t *testing.T) {
	bubble(t, func(r *rig) {
		attr := connectAttr()
		attr.PortSpace = rdmacm.UDP
		attr.Param.PrivateData = bytes.Repeat([]byte{9}, 180)
		ask := func() (*mad.SIDRREQ, uint64) {
			if _, err := r.m.Connect(attr, r.handler); err != nil {
				t.Fatal(err)
			}
			m, s := next[*mad.SIDRREQ](r)
			return m, s.tid
		}
		m, tid := ask()
		if ip, err := mad.ParseIPCM(m.PrivateData); err != nil || ip.Src != here || ip.SrcPort != 40000 || m.PKey != 0xffff ||
			m.ServiceID != 0x1110000+port || !bytes.Equal(m.PrivateData[36:], attr.Param.PrivateData) {
			t.Errorf("SIDR_REQ %+v", m)
		}
		rep := &mad.SIDRREP{RequestID: m.RequestID, QPN: peerQPN, QKey: 0x1234567, ServiceID: m.ServiceID, PrivateData: []byte("ok")}
		r.receive(tid+1, rep)
		r.receiveFrom(third, tid, rep)
		r.nothing()
		r.receive(tid, rep)
		e := r.event(rdmacm.Established, 0)
		if u := e.UD; u.QPNum != peerQPN || u.QKey != 0x1234567 || u.AHAttr.GRH.DGID.Addr() != there || len(u.PrivateData) != 136 {
			t.Errorf("%+v", u)
		}
		r.receive(tid, rep)

		m, tid = ask()
		r.receive(tid, &mad.SIDRREP{RequestID: m.RequestID, Status: mad.SIDRUnsupported})
		r.event(rdmacm.Unreachable, 1)

		ask()
		for range 15 {
			time.Sleep(4096 * time.Millisecond)
			next[*mad.SIDRREQ](r)
		}
		time.Sleep(4096 * time.Millisecond)
		r.event(rdmacm.Unreachable, timedOut)

		if n := r.m.Len(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
		time.Sleep(time.Hour)
		r.nothing()
	})
}

func kernelSIDRREQ(p uint16) *mad.SIDRREQ {
	ip := mad.IPCM{Src: there, SrcPort: peerPort, Dst: here}
	return &mad.SIDRREQ{RequestID: peerID, PKey: 0xffff, ServiceID: mad.ServiceID(uint16(rdmacm.UDP), p),
		PrivateData: append(ip.Append(nil), "who"...)}
}

func TestSIDRListener(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.UDP, 2)
		r.receive(peerTID, kernelSIDRREQ(port))
		e := r.event(rdmacm.ConnectRequest, 0)
		if len(e.UD.PrivateData) != 180 || !bytes.HasPrefix(e.UD.PrivateData, []byte("who\x00")) || e.Dst != there ||
			e.PeerPort != peerPort || e.LocalPort != port || e.UD.AHAttr.GRH.DGID.Addr() != there {
			t.Errorf("%+v", e)
		}
		a, mask, err := e.Conn.QPAttr(verbs.StateInit)
		if err != nil || a.QKey != 0x01234567 || mask != verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey {
			t.Errorf("INIT %+v, %v, %v", a, mask, err)
		}
		r.receive(peerTID, kernelSIDRREQ(port)) // too early
		r.nothing()
		p := acceptParam()
		p.PrivateData = make([]byte, 137)
		if err := e.Conn.Accept(p, 0); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("137 bytes: %v", err)
		}
		p.PrivateData = bytes.Repeat([]byte{4}, 136)
		if err := e.Conn.Accept(p, 0); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			m, s := next[*mad.SIDRREP](r)
			if m.Status != mad.SIDRSuccess || m.QPN != ourQPN || m.QKey != 0x01234567 || m.RequestID != peerID || s.tid != peerTID ||
				!bytes.Equal(m.PrivateData, p.PrivateData) {
				t.Errorf("SIDR_REP %+v", m)
			}
			r.receive(peerTID, kernelSIDRREQ(port)) // as if the answer had been lost
		}
		next[*mad.SIDRREP](r)
		// A new transaction with the same request ID is a new request.
		r.receive(peerTID+1, kernelSIDRREQ(port))
		c := r.event(rdmacm.ConnectRequest, 0).Conn
		e.Conn.Close()
		if err := c.Reject([]byte("no")); err != nil {
			t.Fatal(err)
		}
		if m, _ := next[*mad.SIDRREP](r); m.Status != mad.SIDRReject || !bytes.HasPrefix(m.PrivateData, []byte("no\x00")) {
			t.Errorf("SIDR_REP %+v", m)
		}
		r.receive(peerTID, kernelSIDRREQ(port+1))
		if m, _ := next[*mad.SIDRREP](r); m.Status != mad.SIDRUnsupported {
			t.Errorf("no listener: SIDR_REP %+v", m)
		}
		r.nothing()
	})
}

func TestSIDRBacklog(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.UDP, 2)
		for i := range 5 {
			m := kernelSIDRREQ(port)
			m.RequestID += uint32(i)
			r.receive(peerTID+uint64(i), m)
		}
		a, b := r.event(rdmacm.ConnectRequest, 0).Conn, r.event(rdmacm.ConnectRequest, 0).Conn
		for range 3 {
			next[*mad.DREQ](r)
		}
		r.nothing()
		a.Close()
		b.Close()
		next[*mad.SIDRREP](r)
		next[*mad.SIDRREP](r)
		r.receive(peerTID, kernelSIDRREQ(port))
		r.event(rdmacm.ConnectRequest, 0)
		r.nothing()
	})
}

// TestDepths checks that a QP gets no more depth than the device has, whatever the peer requests.
func TestDepths(t *testing.T) {
	bubble(t, func(r *rig) {
		c, req, tid := r.asked()
		rep := kernelREP(req)
		rep.ResponderResources, rep.InitiatorDepth = 255, 200
		r.receive(tid, rep)
		if p := r.event(rdmacm.ConnectResponse, 0).Param; p.ResponderResources != 200 || p.InitiatorDepth != 255 {
			t.Errorf("response %+v", p)
		}
		rtr, _, err := c.QPAttr(verbs.StateRTR)
		rts, _, err2 := c.QPAttr(verbs.StateRTS)
		if err != nil || err2 != nil || rtr.MaxDestRDAtomic != 128 || rts.MaxRDAtomic != 128 {
			t.Errorf("depths %d and %d; %v, %v", rtr.MaxDestRDAtomic, rts.MaxRDAtomic, err, err2)
		}
		c.Close()
		next[*mad.REJ](r)
	})
}
