package cm

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// sendREJ rejects the peer's last message, or cancels the last one sent.
func (c *conn) sendREJ(reason mad.Reason, data []byte) {
	rej := mad.REJ{LocalCommID: c.localID, RemoteCommID: c.remoteID, Reason: reason, PrivateData: data}
	switch c.state {
	case reqRcvd:
		rej.About = mad.AnsweredREQ
	case repRcvd:
		rej.About = mad.AnsweredREP
	default:
		rej.About = mad.AnsweredOther
	}
	if reason == mad.Timeout {
		// The peer may not have sent its ID. It finds its connection by the local ID and this GUID.
		rej.Info = binary.BigEndian.AppendUint64(nil, c.m.cfg.GUID)
		rej.InfoLen = 8
	}
	c.sendMsg(c.tid, &rej)
}

// onREJ handles a REJ: the peer rejects or gives up.
func (m *Manager) onREJ(d *Datagram, tid uint64, msg *mad.REJ) {
	c := m.findRejected(d, tid, msg)
	if c == nil {
		return
	}
	ev := rdmacm.ConnEvent{
		Type:   rdmacm.Rejected,
		Status: int(msg.Reason),
		Param:  rdmacm.ConnParam{PrivateData: append([]byte(nil), msg.PrivateData...)},
	}
	switch c.state {
	case reqSent, mraReqRcvd, repSent, mraRepRcvd, reqRcvd, repRcvd, established:
		// Linux waits for packets in flight if QPs may have exchanged some. It does not report the end of
		// the wait: the ID is rejected, not disconnected.
		c.release()
		c.report(ev)
	case dreqSent:
		c.wait(0)
	}
}

// findRejected returns the connection that a REJ is for.
func (m *Manager) findRejected(d *Datagram, tid uint64, msg *mad.REJ) *conn {
	if msg.Reason == mad.Timeout && msg.InfoLen >= 8 {
		if c := m.byID[peerKey{d.Src, binary.BigEndian.Uint64(msg.Info), msg.LocalCommID}]; c != nil {
			return m.lookup(d, c.localID)
		}
	}
	c := m.lookup(d, msg.RemoteCommID)
	switch {
	case c == nil, c.ud:
		return nil
	case c.state == reqSent || c.state == mraReqRcvd:
		// The peer's ID is unknown. The transaction ID proves that the sender received the REQ.
		if tid != c.tid || msg.About != mad.AnsweredREQ {
			return nil
		}
	case msg.LocalCommID != c.remoteID:
		return nil
	}
	return c
}

// Disconnect implements rdmacm.ProviderConn.
func (c *conn) Disconnect() error {
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	switch {
	case c.closed:
	case c.state == established:
		c.sendDREQ()
		return nil
	case c.state == dreqRcvd:
		c.sendDREP()
		c.wait(0)
		return nil
	}
	return c.stateError("disconnect", "established")
}

func (c *conn) sendDREQ() {
	if flush := c.m.cfg.BeforeDisconnect; flush != nil {
		flush(c.localQPN)
	}
	c.set(dreqSent)
	c.maxRetries = maxRetries
	if c.m.draining {
		c.timeout = drainTimeout
	}
	c.sendRequest(uint64(c.m.mustRandom())<<32|uint64(c.localID), &mad.DREQ{
		LocalCommID: c.localID, RemoteCommID: c.remoteID, RemoteQPN: c.remoteQPN,
	})
}

// mustRandom returns a random transaction ID. A predictable one would do no harm, because the
// message has two random communication IDs.
func (m *Manager) mustRandom() uint32 {
	n, _ := m.random()
	return n
}

func (c *conn) sendDREP() {
	c.sendMsg(c.tid, &mad.DREP{LocalCommID: c.localID, RemoteCommID: c.remoteID})
}

// onDREQ handles a DREQ: the peer disconnects.
func (m *Manager) onDREQ(d *Datagram, tid uint64, msg *mad.DREQ) {
	c := m.lookup(d, msg.RemoteCommID)
	if c == nil || c.remoteID != msg.LocalCommID {
		validatesUs := c != nil && (c.state == reqSent || c.state == mraReqRcvd ||
			c.state == sidrReqSent) // address validation: see validate.go
		if m.ids.Get(msg.RemoteCommID) != nil && !validatesUs {
			return // not from the peer
		}
		// The connection is over, and the DREP was lost.
		m.Counters.duplicate(mad.AttrDREQ)
		m.reply(d, tid, &mad.DREP{LocalCommID: msg.RemoteCommID, RemoteCommID: msg.LocalCommID})
		return
	}
	if c.localQPN != msg.RemoteQPN {
		return
	}
	switch c.state {
	case repSent, mraRepRcvd, established:
		c.stopRetries()
		c.tid = tid
		c.set(dreqRcvd)
		c.end(0)
	case dreqSent:
		// Both sides disconnect at the same time. The application has nothing left to do, so the answer
		// is sent at once.
		c.tid = tid
		c.sendDREP()
		c.wait(0)
	case dreqRcvd:
		m.Counters.duplicate(mad.AttrDREQ)
		c.tid = tid
	case timewait:
		m.Counters.duplicate(mad.AttrDREQ)
		c.tid = tid
		c.sendDREP()
	}
}

// onDREP handles a DREP: the peer knows of the end.
func (c *conn) onDREP() {
	switch c.state {
	case dreqSent, dreqRcvd:
		c.wait(0)
	default:
		c.m.Counters.duplicate(mad.AttrDREP)
	}
}

// end reports Disconnected, once.
func (c *conn) end(status int) {
	if !c.ended {
		c.ended = true
		c.report(rdmacm.ConnEvent{Type: rdmacm.Disconnected, Status: status})
	}
}

// wait starts the time wait. The QP should not be used again while packets of the connection may
// arrive. The peer's IDs are free at once.
func (c *conn) wait(status int) {
	c.end(status)
	c.stopRetries()
	if c.closed {
		c.release()
		return
	}
	c.forgetPeer()
	c.set(timewait)
	c.arm(wait(min(c.ackTimeout, maxResponseTimeout)))
}

// HostLeft ends the connections with a host that has left the network, as if the host had
// disconnected. Connections that are not established end by their own timeouts, because the next
// host at the address may answer.
func (m *Manager) HostLeft(addr netip.Addr) {
	m.mu.Lock()
	for _, c := range m.ids.All() {
		if c.route.Dst != addr {
			continue
		}
		switch c.state {
		case repSent, mraRepRcvd, established, dreqSent:
			c.wait(0)
		}
	}
	m.unlockAndDeliver()
}

// onStale disconnects, because the peer uses this connection's QP for another connection, and so
// has lost this one.
func (c *conn) onStale() {
	if c.state == established {
		c.sendDREQ()
	}
}

// Close implements rdmacm.ProviderConn.
func (c *conn) Close() {
	c.m.mu.Lock()
	defer c.m.unlockAndDeliverLater()
	if c.closed {
		return
	}
	c.closed, c.events = true, nil
	switch c.state {
	case reqSent, mraReqRcvd:
		c.sendREJ(mad.Timeout, nil)
	case reqRcvd, repRcvd, repSent, mraRepRcvd:
		c.sendREJ(mad.ConsumerDefined, nil)
	case sidrReqRcvd:
		c.rejectSIDR(nil)
	case dreqRcvd:
		c.sendDREP()
	case established:
		// The DREQ is retransmitted like any other, so that the peer gets it even if messages are
		// lost.
		c.sendDREQ()
		return
	case dreqSent:
		return
	}
	c.release()
}
