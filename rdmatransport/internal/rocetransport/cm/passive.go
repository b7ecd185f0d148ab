package cm

import (
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// onREQ handles a connection request. validated: the peer's address is validated.
func (m *Manager) onREQ(d *Datagram, tid uint64, msg *mad.REQ, validated bool) {
	byID := peerKey{d.Src, msg.LocalCAGUID, msg.LocalCommID}
	byQP := peerKey{d.Src, msg.LocalCAGUID, msg.LocalQPN}
	if c := m.byID[byID]; c != nil {
		m.Counters.duplicate(mad.AttrREQ)
		c.onDuplicateREQ()
		return
	}
	rej := &mad.REJ{RemoteCommID: msg.LocalCommID, About: mad.AnsweredREQ}
	if old := m.byQP[byQP]; old != nil {
		rej.Reason = mad.StaleConnection
		m.reply(d, tid, rej)
		old.onStale()
		return
	}
	l, ip := m.match(d, msg, rej)
	if l == nil {
		m.reply(d, tid, rej)
		return
	}
	if !validated && !l.acceptsUnvalidated() {
		m.hold(d, msg.LocalCommID, msg.LocalQPN)
		return
	}
	if validated && !l.acceptsValidated(d.Src) {
		return
	}
	psn, err := m.random()
	if err != nil {
		return
	}
	c := m.newConn(l.handler, rdmacm.Route{
		Transport: verbs.RoCEv2, Src: d.Dst, Dst: d.Src, PortNum: d.Port, GIDIndex: m.cfg.GIDIndex(d.Port, d.Dst),
		MTU: verbs.MTU(msg.MTU), TOS: msg.Primary.TrafficClass, SL: msg.Primary.SL,
	})
	c.listener, c.validated = l, validated
	c.localPort, c.remotePort = uint16(msg.ServiceID), ip.SrcPort
	c.serviceID = msg.ServiceID
	if c.open() != nil {
		return
	}
	c.tid = tid
	c.remoteGUID, c.remoteID, c.remoteQPN = msg.LocalCAGUID, msg.LocalCommID, msg.LocalQPN
	m.byID[byID], m.byQP[byQP] = c, c
	c.qpType = verbs.RC
	if msg.ServiceType == mad.ServiceExtended {
		c.qpType = verbs.XRCRecv
	}
	c.sendPSN, c.recvPSN = msg.StartingPSN, psn&mask24
	c.mtu = verbs.MTU(msg.MTU)
	c.flowLabel = msg.Primary.FlowLabel
	c.responder, c.initiator = msg.InitiatorDepth, msg.ResponderResources
	c.retryCount, c.rnrRetry = msg.RetryCount, msg.RNRRetryCount
	c.ackTimeout = msg.Primary.AckTimeout
	c.timeout = wait(min(max(msg.LocalResponseTimeout, minResponseTimeout), maxResponseTimeout))
	c.maxRetries = int(msg.MaxCMRetries)
	c.noFailover = msg.Alternate.LocalLID != 0 || msg.Alternate.LocalGID != [16]byte{}
	c.set(reqRcvd)
	c.report(rdmacm.ConnEvent{
		Type:  rdmacm.ConnectRequest,
		Route: c.route, LocalPort: c.localPort, PeerPort: c.remotePort, QPType: c.qpType,
		Param: rdmacm.ConnParam{
			PrivateData:        append([]byte(nil), msg.PrivateData[mad.IPCMLen:]...),
			ResponderResources: c.responder,
			InitiatorDepth:     c.initiator,
			FlowControl:        msg.FlowControl,
			RetryCount:         msg.RetryCount,
			RNRRetryCount:      msg.RNRRetryCount,
			SRQ:                msg.SRQ,
			QPNum:              msg.LocalQPN,
		},
	})
}

// match returns the listener for a request. If there is none, it sets the reason in rej.
func (m *Manager) match(d *Datagram, msg *mad.REQ, rej *mad.REJ) (*listener, mad.IPCM) {
	l, known := m.findListener(msg.ServiceID, d.Dst)
	ip, err := mad.ParseIPCM(msg.PrivateData)
	switch {
	case !m.cfg.Access.Admits(d.Src): // it does not learn which service IDs exist
		rej.Reason = mad.ConsumerDefined
	case !known:
		rej.Reason = mad.InvalidServiceID
	case l == nil, err != nil, l.space == rdmacm.UDP:
		rej.Reason = mad.ConsumerDefined // as in Linux
	case netip.AddrFrom16(msg.Primary.LocalGID).Unmap() != d.Src, netip.AddrFrom16(msg.Primary.RemoteGID).Unmap() != d.Dst,
		ip.Src.Unmap() != d.Src, ip.Dst.Unmap() != d.Dst:
		// Only the datagram's own addresses are trusted.
		rej.Reason = mad.InvalidGID
	case m.cfg.GIDIndex(d.Port, d.Dst) < 0:
		rej.Reason = mad.InvalidGID // QPs cannot send from that address
	case !l.accepts(msg):
		rej.Reason = mad.InvalidTransportType
	case msg.LocalQPN <= mad.QPN:
		rej.Reason = mad.NoQP
	case verbs.MTU(msg.MTU).Bytes() == 0, verbs.MTU(msg.MTU) > m.cfg.MTU(d.Port):
		rej.Reason = mad.InvalidMTU
	default:
		return l, ip
	}
	return nil, ip
}

// accepts reports whether the listener's port space supports the requested transport. XRC is only
// in RDMA_PS_IB, as in rdma_cm.
func (l *listener) accepts(msg *mad.REQ) bool {
	return msg.ServiceType == mad.ServiceRC ||
		msg.ServiceType == mad.ServiceExtended && msg.ExtendedType == mad.ExtendedXRC && l.space == rdmacm.IB
}

// onDuplicateREQ handles a repeated REQ.
func (c *conn) onDuplicateREQ() {
	switch c.state {
	case reqRcvd:
		c.sendMRA(mad.AnsweredREQ)
	case repSent:
		c.m.Counters.sent(mad.AttrREP)
		c.m.Counters.resent(mad.AttrREP)
		c.path.Send(c.msg)
	}
}

// Accept implements rdmacm.ProviderConn.
func (c *conn) Accept(p *rdmacm.ConnParam, qkey uint32) error {
	const op = "accept"
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	if c.closed || !c.state.unanswered() {
		return c.stateError(op, reqRcvd.String())
	}
	if err := qpNum(op, p.QPNum); err != nil {
		return err
	}
	if c.ud {
		if err := privateData(op, p.PrivateData, mad.SIDRREPPrivateLen); err != nil {
			return err
		}
		c.acceptSIDR(p, qkey)
		return nil
	}
	if err := privateData(op, p.PrivateData, mad.REPPrivateLen); err != nil {
		return err
	}
	c.localQPN = p.QPNum
	c.responder, c.initiator = p.ResponderResources, p.InitiatorDepth
	rep := mad.REP{
		LocalCommID: c.localID, RemoteCommID: c.remoteID,
		LocalQPN:           c.localQPN,
		StartingPSN:        c.recvPSN,
		ResponderResources: c.responder,
		InitiatorDepth:     c.initiator,
		TargetAckDelay:     c.m.cfg.AckDelay,
		FlowControl:        p.FlowControl,
		RNRRetryCount:      min(p.RNRRetryCount, 7),
		SRQ:                p.SRQ,
		LocalCAGUID:        c.m.cfg.GUID,
		PrivateData:        p.PrivateData,
	}
	if c.qpType == verbs.XRCRecv {
		rep.LocalQPN, rep.LocalEECN, rep.SRQ = 0, c.localQPN, true
		rep.InitiatorDepth, rep.FlowControl = 0, false // the target makes no requests
	}
	if c.noFailover {
		rep.FailoverAccepted = 1 // not supported
	}
	c.set(repSent)
	c.sendRequest(c.tid, &rep)
	return nil
}

// onRTU handles a RTU: the peer is ready.
func (c *conn) onRTU() {
	if c.state != repSent && c.state != mraRepRcvd {
		c.m.Counters.duplicate(mad.AttrRTU)
		return
	}
	c.setEstablished()
}

func (c *conn) setEstablished() {
	c.stopRetries()
	c.set(established)
	c.report(rdmacm.ConnEvent{Type: rdmacm.Established})
}

// Notify implements rdmacm.ProviderConn.
func (c *conn) Notify() error {
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	switch {
	case c.closed:
	case c.state == repSent, c.state == mraRepRcvd:
		c.setEstablished()
		return nil
	case c.state == established:
		return verbs.Errorf(syscall.EISCONN, "notify", "the connection to %v is established already", c.dst())
	}
	return c.stateError("notify", repSent.String())
}

// Reject implements rdmacm.ProviderConn.
func (c *conn) Reject(data []byte) error {
	const op = "reject"
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	switch {
	case c.closed:
		return c.stateError(op, "")
	case c.state == sidrReqRcvd:
		if err := privateData(op, data, mad.SIDRREPPrivateLen); err != nil {
			return err
		}
		c.rejectSIDR(data)
	case c.state == reqRcvd, c.state == repRcvd:
		if err := privateData(op, data, mad.REJPrivateLen); err != nil {
			return err
		}
		c.sendREJ(mad.ConsumerDefined, data)
		c.release()
	default:
		return c.stateError(op, reqRcvd.String())
	}
	return nil
}
