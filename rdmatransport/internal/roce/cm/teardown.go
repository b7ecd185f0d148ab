package cm

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// sendREJ refuses what the peer said last, or takes back what was said to it.
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
		// The peer may not have told its ID: it finds its end by the ID here and this GUID.
		rej.Info = binary.BigEndian.AppendUint64(nil, c.m.cfg.GUID)
		rej.InfoLen = 8
	}
	c.sendMsg(c.tid, &rej)
}

// onREJ: the peer refuses, or gives up.
func (m *Manager) onREJ(d *Datagram, tid uint64, msg *mad.REJ) {
	c := m.rejected(d, tid, msg)
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
		// Linux waits out packets under way where QPs may have exchanged some, but does not report
		// the end of it: the ID is not disconnected but rejected.
		c.release()
		c.report(ev)
	case dreqSent:
		c.wait(0)
	}
}

// rejected is the connection that a REJ is about.
func (m *Manager) rejected(d *Datagram, tid uint64, msg *mad.REJ) *conn {
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
		// The peer's ID is not known yet, so the transaction is what proves that the REQ was seen.
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
		c.askDREQ()
		return nil
	case c.state == dreqRcvd:
		c.sendDREP()
		c.wait(0)
		return nil
	}
	return c.stateError("disconnect", "established")
}

func (c *conn) askDREQ() {
	if ending := c.m.cfg.Ending; ending != nil {
		ending(c.localQPN)
	}
	c.set(dreqSent)
	c.maxRetries = maxRetries
	if c.m.draining {
		c.timeout = drainTimeout
	}
	c.ask(uint64(c.m.mustRandom())<<32|uint64(c.localID), &mad.DREQ{
		LocalCommID: c.localID, RemoteCommID: c.remoteID, RemoteQPN: c.remoteQPN,
	})
}

// mustRandom is random where a predictable number does no harm: the transaction IDs of messages
// that carry two random communication IDs.
func (m *Manager) mustRandom() uint32 {
	n, _ := m.random()
	return n
}

func (c *conn) sendDREP() {
	c.sendMsg(c.tid, &mad.DREP{LocalCommID: c.localID, RemoteCommID: c.remoteID})
}

// onDREQ: the peer disconnects.
func (m *Manager) onDREQ(d *Datagram, tid uint64, msg *mad.DREQ) {
	c := m.lookup(d, msg.RemoteCommID)
	if c == nil || c.remoteID != msg.LocalCommID {
		asksUs := c != nil && (c.state == reqSent || c.state == mraReqRcvd || c.state == sidrReqSent) // whether we are there: see held.go
		if m.ids.Get(msg.RemoteCommID) != nil && !asksUs {
			return // somebody else's
		}
		// Over and forgotten: the DREP was lost.
		m.Counters.duplicate(mad.AttrDREQ)
		m.reply(d, tid, &mad.DREP{LocalCommID: msg.RemoteCommID, RemoteCommID: msg.LocalCommID})
		return
	}
	if c.localQPN != msg.RemoteQPN {
		return
	}
	switch c.state {
	case repSent, mraRepRcvd, established:
		c.answered()
		c.tid = tid
		c.set(dreqRcvd)
		c.end(0)
	case dreqSent:
		// Both ask at once. Nothing is left for the application to do, so the answer need not wait
		// for it.
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

// onDREP: the peer knows that it is over.
func (c *conn) onDREP() {
	switch c.state {
	case dreqSent, dreqRcvd:
		c.wait(0)
	default:
		c.m.Counters.duplicate(mad.AttrDREP)
	}
}

// end reports the end, once.
func (c *conn) end(status int) {
	if !c.ended {
		c.ended = true
		c.report(rdmacm.ConnEvent{Type: rdmacm.Disconnected, Status: status})
	}
}

// wait begins time wait: for as long as a packet of the connection can still arrive, its QP should
// not be used anew. What the peer calls its own is free at once.
func (c *conn) wait(status int) {
	c.end(status)
	c.answered()
	if c.closed {
		c.release()
		return
	}
	c.forgetPeer()
	c.set(timewait)
	c.arm(wait(min(c.ackTimeout, maxResponseTimeout)))
}

// Left ends the connections with a host that has left the network, as if it had asked for that.
// What is not established ends by its own timeouts: whoever gets the address next may answer.
func (m *Manager) Left(addr netip.Addr) {
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

// stale: the peer has given the QP that this connection leads to another one, so it knows nothing
// of this one any more.
func (c *conn) stale() {
	if c.state == established {
		c.askDREQ()
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
		// The peer must hear of it even if messages are lost, so that the DREQ is repeated like any
		// other.
		c.askDREQ()
		return
	case dreqSent:
		return
	}
	c.release()
}
