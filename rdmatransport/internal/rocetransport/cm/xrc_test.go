package cm_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// raw calls do, which sends one message. It returns the bytes and the transaction ID of the
// message.
func (r *rig) raw(do func() error) (tid uint64, message []byte) {
	r.t.Helper()
	var all [][]byte
	r.mu.Lock()
	r.onSend = func(_ netip.Addr, b []byte) { all = append(all, slices.Clone(b)) }
	r.mu.Unlock()
	if err := do(); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.onSend = nil
	if len(all) != 1 {
		r.t.Fatalf("%d messages", len(all))
	}
	return binary.BigEndian.Uint64(all[0][8:]), all[0][24:]
}

// checkXRCAttr checks the transitions of one half of an XRC connection.
func checkXRCAttr(t *testing.T, c rdmacm.ProviderConn, rtr, rts verbs.QPAttrMask) {
	t.Helper()
	for to, want := range map[verbs.QPState]verbs.QPAttrMask{
		verbs.StateRTR: rtr | verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN,
		verbs.StateRTS: rts | verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout,
	} {
		a, mask, err := c.QPAttr(to)
		if err != nil || mask != want || to == verbs.StateRTR && a.DestQPNum != peerQPN {
			t.Errorf("%v: %+v, mask %v, %v; want mask %v", to, a, mask, err, want)
		}
	}
}

// TestXRCConnect checks the bytes of a request (IBTA Vol 1 §12.6.5). The answer has the target's
// number in the field of the EE context (§12.6.8, annex A14).
func TestXRCConnect(t *testing.T) {
	bubble(t, func(r *rig) {
		attr := connectAttr()
		attr.PortSpace, attr.QPType, attr.Param.SRQ = rdmacm.IB, verbs.XRCSend, true
		var c rdmacm.ProviderConn
		tid, req := r.raw(func() (err error) {
			c, err = r.m.Connect(attr, r.handler)
			return err
		})
		for _, f := range []struct {
			what     string
			at       int
			mask, is byte
		}{
			{"transport service type: extended", 43, 0x06, 0x06}, {"extended transport type: XRC", 51, 0x07, 0x01},
			{"SRQ", 51, 0x08, 0}, {"responder resources", 35, 0xff, 0}, {"initiator depth", 39, 0xff, 2},
			{"retry count", 47, 0x07, 0}, {"RNR retry count", 50, 0x07, 0}, {"QP number", 34, 0xff, byte(ourQPN & 0xff)},
			{"port space", 13, 0xff, 0x3f},
		} {
			if got := req[f.at] & f.mask; got != f.is {
				t.Errorf("%s: %#02x, want %#02x", f.what, got, f.is)
			}
		}
		h := mad.REQ{}
		mad.Decode(req, &h)
		rep := kernelREP(&h)
		rep.LocalQPN, rep.LocalEECN, rep.SRQ, rep.InitiatorDepth = 0, peerQPN, true, 0
		wrong := *rep
		wrong.LocalQPN, wrong.LocalEECN = peerQPN, 0 // no target
		r.receive(tid, &wrong)
		r.nothing()
		r.receive(tid, rep)
		e := r.event(rdmacm.ConnectResponse, 0)
		if p := e.Param; p.QPNum != peerQPN || !p.SRQ || p.ResponderResources != 0 || p.InitiatorDepth != 6 {
			t.Errorf("response %+v", p)
		}
		checkXRCAttr(t, c, 0, verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrMaxQPRDAtomic)
	})
}

// TestXRCAccept is TestXRCConnect on the passive side.
func TestXRCAccept(t *testing.T) {
	bubble(t, func(r *rig) {
		r.listen(rdmacm.IB, 10)
		req := kernelREQ()
		req.ServiceID = mad.ServiceID(uint16(rdmacm.IB), port)
		req.ServiceType, req.ExtendedType = 3, 1
		req.ResponderResources, req.RetryCount, req.RNRRetryCount = 0, 0, 0
		r.receive(peerTID, req)
		e := r.event(rdmacm.ConnectRequest, 0)
		if e.QPType != verbs.XRCRecv || e.Param.ResponderResources != 5 || e.Param.InitiatorDepth != 0 {
			t.Errorf("request for %v, %+v", e.QPType, e.Param)
		}
		_, rep := r.raw(func() error { return e.Conn.Accept(acceptParam(), 0) })
		if qpn := rep[12:15]; !slices.Equal(qpn, []byte{0, 0, 0}) {
			t.Errorf("local QPN %x", qpn)
		}
		if eecn := rep[16:19]; !slices.Equal(eecn, []byte{ourQPN >> 16, ourQPN >> 8 & 0xff, ourQPN & 0xff}) {
			t.Errorf("local EECN %x", eecn)
		}
		if rep[24] != 4 || rep[25] != 0 || rep[26]&1 != 0 || rep[27]&0x10 == 0 || rep[27]>>5 != 7 {
			t.Errorf("resources %d, depth %d, %08b %08b", rep[24], rep[25], rep[26], rep[27])
		}
		checkXRCAttr(t, e.Conn, verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer, 0)
	})
}

// TestXRCRefused checks that other extended transports are rejected, and XRC in other port spaces.
func TestXRCRefused(t *testing.T) {
	for _, c := range []struct {
		space    rdmacm.PortSpace
		extended uint8
	}{{rdmacm.TCP, 1}, {rdmacm.IB, 0}, {rdmacm.IB, 2}} {
		bubble(t, func(r *rig) {
			r.listen(c.space, 10)
			req := kernelREQ()
			req.ServiceID, req.ServiceType, req.ExtendedType = mad.ServiceID(uint16(c.space), port), 3, c.extended
			r.receive(peerTID, req)
			if rej, _ := next[*mad.REJ](r); rej.Reason != mad.InvalidTransportType {
				t.Errorf("%v, type %d: REJ %+v", c.space, c.extended, rej)
			}
			r.nothing()
		})
	}
}
