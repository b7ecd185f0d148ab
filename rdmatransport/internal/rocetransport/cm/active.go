package cm

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// MaxREQPrivate and MaxSIDRPrivate are the number of private data bytes that the application may
// send in a request.
const (
	MaxREQPrivate  = mad.REQPrivateLen - mad.IPCMLen
	MaxSIDRPrivate = mad.SIDRREQPrivateLen - mad.IPCMLen
)

const opConnect = "connect"

// Connect sends a connection request, or in the UDP port space a request for the QP of a port.
func (m *Manager) Connect(attr *rdmacm.ConnectAttr, h rdmacm.Handler) (rdmacm.ProviderConn, error) {
	ud := attr.PortSpace == rdmacm.UDP
	p := &attr.Param
	if ud {
		if err := privateData(opConnect, p.PrivateData, MaxSIDRPrivate); err != nil {
			return nil, err
		}
	} else {
		if err := checkREQ(attr); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.unlockAndDeliverLater()
	if m.closed {
		return nil, verbs.Errorf(verbs.ErrClosed, opConnect, "the device is closed")
	}
	route := attr.Route
	route.Src, route.Dst = route.Src.Unmap().WithZone(""), route.Dst.Unmap().WithZone("")
	c := m.newConn(h, route)
	c.active, c.ud = true, ud
	c.localPort, c.remotePort = attr.LocalPort, attr.PeerPort
	c.serviceID = mad.ServiceID(uint16(attr.PortSpace), attr.PeerPort)
	c.maxRetries = maxRetries
	if err := c.open(); err != nil {
		return nil, err
	}
	high, err := m.random()
	if err != nil {
		c.release()
		return nil, err
	}
	c.tid = uint64(high)<<32 | uint64(c.localID)
	c.flowLabel = high & (1<<20 - 1)
	ip := mad.IPCM{Src: c.route.Src, SrcPort: c.localPort, Dst: c.route.Dst}
	data := append(ip.Append(nil), p.PrivateData...)
	if ud {
		c.sendSIDRREQ(data)
		return c, nil
	}
	if err := c.sendREQ(attr, data); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// open gives the connection a path and a communication ID.
func (c *conn) open() (err error) {
	if c.path, err = c.m.path(pathKey{c.route.PortNum, c.route.Src, c.route.Dst, c.route.TOS, c.route.SL & 7, [6]byte{}}); err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	if c.localID, err = c.m.ids.Insert(c); err != nil {
		c.release()
		return fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
	}
	return nil
}

func checkREQ(attr *rdmacm.ConnectAttr) error {
	p := &attr.Param
	if err := privateData(opConnect, p.PrivateData, MaxREQPrivate); err != nil {
		return err
	}
	if err := qpNum(opConnect, p.QPNum); err != nil {
		return err
	}
	if attr.MTU.Bytes() == 0 {
		return verbs.Errorf(verbs.ErrInvalid, opConnect, "path MTU %d: want 1 to 5", attr.MTU)
	}
	if attr.AckTimeout > 31 {
		return verbs.Errorf(verbs.ErrInvalid, opConnect, "ACK timeout %d: at most 31", attr.AckTimeout)
	}
	if t := attr.QPType; t != 0 && t != verbs.RC && t != verbs.UC && t != verbs.XRCSend {
		return verbs.Errorf(verbs.ErrInvalid, opConnect, "QP type %v cannot be connected: want RC, UC or XRC_SEND", t)
	}
	return nil
}

func (c *conn) sendREQ(attr *rdmacm.ConnectAttr, data []byte) error {
	psn, err := c.m.random()
	if err != nil {
		return err
	}
	p := &attr.Param
	lifetime := uint8(packetLifetime)
	if attr.AckTimeout > 0 {
		c.ackOption, lifetime = attr.AckTimeout, attr.AckTimeout-1
	}
	c.qpType = cmp.Or(attr.QPType, verbs.RC)
	c.recvPSN = psn & mask24
	c.localQPN = p.QPNum
	c.mtu = attr.MTU
	c.responder, c.initiator = p.ResponderResources, p.InitiatorDepth
	c.retryCount, c.rnrRetry = min(p.RetryCount, 7), min(p.RNRRetryCount, 7)
	c.ackTimeout = lifetime + 1
	c.timeout = 2*wait(min(lifetime, maxResponseTimeout)) + wait(responseTimeout)
	req := mad.REQ{
		LocalCommID:           c.localID,
		ServiceID:             c.serviceID,
		LocalCAGUID:           c.m.cfg.GUID,
		LocalQPN:              c.localQPN,
		ResponderResources:    c.responder,
		InitiatorDepth:        c.initiator,
		RemoteResponseTimeout: responseTimeout,
		FlowControl:           p.FlowControl,
		StartingPSN:           c.recvPSN,
		LocalResponseTimeout:  responseTimeout,
		RetryCount:            c.retryCount,
		PKey:                  defaultPKey,
		MTU:                   uint8(c.mtu),
		RNRRetryCount:         c.rnrRetry,
		MaxCMRetries:          maxRetries,
		SRQ:                   p.SRQ,
		Primary: mad.Path{
			LocalLID: permissiveLID, RemoteLID: permissiveLID,
			LocalGID: verbs.GIDFromAddr(c.route.Src), RemoteGID: verbs.GIDFromAddr(c.route.Dst),
			FlowLabel: c.flowLabel, TrafficClass: c.route.TOS, HopLimit: hopLimit, SL: c.route.SL,
			AckTimeout: ackTimeout(c.m.cfg.AckDelay, lifetime),
		},
		PrivateData: data,
	}
	switch c.qpType {
	case verbs.UC:
		req.ServiceType = mad.ServiceUC
	case verbs.XRCSend:
		// An initiator answers no requests, and its target makes none.
		req.ServiceType, req.ExtendedType = mad.ServiceExtended, mad.ExtendedXRC
		req.ResponderResources, req.RetryCount, req.RNRRetryCount, req.SRQ = 0, 0, 0, false
	}
	c.set(reqSent)
	c.sendRequest(c.tid, &req)
	return nil
}

// onREP handles a REP: the peer accepts.
func (m *Manager) onREP(d *Datagram, tid uint64, msg *mad.REP) {
	c := m.lookup(d, msg.RemoteCommID)
	if c == nil {
		// Without an answer, the peer would wait for the RTU until its retries are exhausted.
		if m.ids.Get(msg.RemoteCommID) == nil {
			m.reply(d, tid, &mad.REJ{LocalCommID: msg.RemoteCommID, RemoteCommID: msg.LocalCommID,
				About: mad.AnsweredREP, Reason: mad.InvalidCommID})
		}
		return
	}
	switch c.state {
	case reqSent, mraReqRcvd:
		c.onFirstREP(d, tid, msg)
		return
	case repRcvd, established:
	default:
		return
	}
	if !c.active || msg.LocalCommID != c.remoteID {
		return
	}
	m.Counters.duplicate(mad.AttrREP)
	if c.state == established {
		c.sendRTU()
	} else {
		c.sendMRA(mad.AnsweredREP)
	}
}

// onFirstREP handles the first REP.
func (c *conn) onFirstREP(d *Datagram, tid uint64, msg *mad.REP) {
	qpn := msg.LocalQPN
	if c.qpType == verbs.XRCSend {
		qpn = msg.LocalEECN
	}
	if tid != c.tid || qpn <= mad.QPN {
		return
	}
	byID := peerKey{d.Src, msg.LocalCAGUID, msg.LocalCommID}
	byQP := peerKey{d.Src, msg.LocalCAGUID, qpn}
	if c.m.byID[byID] != nil {
		return
	}
	if old := c.m.byQP[byQP]; old != nil {
		c.m.reply(d, tid, &mad.REJ{LocalCommID: c.localID, RemoteCommID: msg.LocalCommID,
			About: mad.AnsweredREP, Reason: mad.StaleConnection})
		old.onStale()
		return
	}
	c.stopRetries()
	c.remoteGUID, c.remoteID, c.remoteQPN = msg.LocalCAGUID, msg.LocalCommID, qpn
	c.m.byID[byID], c.m.byQP[byQP] = c, c
	c.initiator, c.responder = msg.ResponderResources, msg.InitiatorDepth
	c.sendPSN = msg.StartingPSN
	c.rnrRetry = msg.RNRRetryCount
	c.ackTimeout = ackTimeout(msg.TargetAckDelay, c.ackTimeout-1)
	c.set(repRcvd)
	c.report(rdmacm.ConnEvent{
		Type:  rdmacm.ConnectResponse,
		Route: c.route, LocalPort: c.localPort, PeerPort: c.remotePort,
		Param: rdmacm.ConnParam{
			PrivateData:        append([]byte(nil), msg.PrivateData...),
			ResponderResources: c.responder,
			InitiatorDepth:     c.initiator,
			FlowControl:        msg.FlowControl,
			RNRRetryCount:      msg.RNRRetryCount,
			SRQ:                msg.SRQ,
			QPNum:              qpn,
		},
	})
}

// Establish implements rdmacm.ProviderConn.
func (c *conn) Establish() error {
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	if c.closed || c.state != repRcvd {
		return c.stateError("establish", "waiting for it")
	}
	c.set(established)
	c.sendRTU()
	return nil
}

func (c *conn) sendRTU() {
	c.sendMsg(c.tid, &mad.RTU{LocalCommID: c.localID, RemoteCommID: c.remoteID})
}

// dst is the destination in error messages.
func (c *conn) dst() netip.AddrPort { return netip.AddrPortFrom(c.route.Dst, c.remotePort) }
