package cm

import (
	"encoding/binary"
	"io"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Address validation of peers. A request is one datagram with a source that may be forged, and its
// state lasts a minute if the REP is not answered. A listener therefore accepts only a limited
// number of requests from peers whose address is not validated. Beyond that, a request is held, and
// a DREQ for a connection that does not exist is sent to its source. Every implementation of the IB
// CM, including Linux, answers with a DREP of the same transaction ID, and keeps no state for it
// (IBTA Vol 1 §12.9.7). The DREP validates the address, and the request is accepted. New held
// requests replace the oldest. In a flood of 100,000 requests per second, a peer has 160 ms to
// answer.

// held is a request that waits for the DREP of its source.
type held struct {
	tid uint64 // of the DREQ: the index in Manager.held, and random bits; 0 once answered
	Datagram
	mad [mad.Size]byte
}

// hold keeps a request, and sends a DREQ to validate its source. id is the source's communication
// ID, qpn its QP number.
func (m *Manager) hold(d *Datagram, id, qpn uint32) {
	m.Counters.Held.Add(1)
	if m.validator == nil {
		c := m.newConn(nil, rdmacm.Route{}) // for a communication ID that DREPs can name
		var err error
		if c.localID, err = m.ids.Insert(c); err != nil {
			return
		}
		m.validator = c
	}
	var b [8]byte
	if _, err := io.ReadFull(m.cfg.Rand, b[:]); err != nil {
		return
	}
	p, err := m.replyPath(d)
	if err != nil {
		return
	}
	if len(m.held) < maxHeld {
		m.held = append(m.held, held{})
		m.nextHeld = len(m.held) - 1
	} else {
		m.nextHeld = (m.nextHeld + 1) % maxHeld
	}
	m.lastHeld = m.cfg.Timers.Now()
	h := &m.held[m.nextHeld]
	h.tid = (binary.BigEndian.Uint64(b[:])|1<<63)&^(maxHeld-1) | uint64(m.nextHeld)
	h.Datagram = *d
	h.MAD = nil
	copy(h.mad[:], d.MAD)
	m.send(p, h.tid, &mad.DREQ{LocalCommID: m.validator.localID, RemoteCommID: id, RemoteQPN: qpn})
	m.putPath(p)
}

// onValidated accepts a held request after the DREP of its source.
func (m *Manager) onValidated(d *Datagram, tid uint64) {
	at := tid & (maxHeld - 1)
	if at >= uint64(len(m.held)) || m.held[at].tid != tid {
		m.Counters.duplicate(mad.AttrDREP)
		return
	}
	h := &m.held[at]
	if h.Src != d.Src || h.Dst != d.Dst || h.Port != d.Port {
		return
	}
	h.tid = 0
	request := h.Datagram
	request.MAD = h.mad[:]
	header, data, err := mad.Parse(request.MAD)
	if err != nil {
		return // it parsed before it was held
	}
	switch header.Attr {
	case mad.AttrREQ:
		var msg mad.REQ
		mad.Decode(data, &msg)
		m.onREQ(&request, header.TID, &msg, true)
	case mad.AttrSIDRREQ:
		var msg mad.SIDRREQ
		mad.Decode(data, &msg)
		m.onSIDRREQ(&request, header.TID, &msg, true)
	}
}

// forgetHeld frees the memory when no unvalidated request is half-open, and none was held for a
// while.
func (m *Manager) forgetHeld() {
	m.held, m.nextHeld = nil, 0
	if m.validator != nil {
		m.ids.Delete(m.validator.localID)
		m.validator = nil
	}
}

// acceptsUnvalidated reports whether another request from an unvalidated peer may be accepted.
func (l *listener) acceptsUnvalidated() bool {
	return l.unvalidated < l.backlog && l.m.halfOpen.unvalidated < maxHalfOpen
}

// acceptsValidated reports whether another request from a validated peer may be accepted. There is
// room for two backlogs, of which a peer has half of what the others leave: one if it is alone. So
// none keeps the listener from the others.
func (l *listener) acceptsValidated(peer netip.Addr) bool {
	mine := l.of[peer]
	if mine < admission.Share(mine, l.validated, 2*l.backlog) && l.m.halfOpen.validated < maxHalfOpen {
		return true
	}
	l.m.Counters.Dropped.Add(1)
	return false
}

// counts are numbers of connections requested by peers.
type counts struct {
	unvalidated int // of peers whose address is not validated
	validated   int // of all others
}

// countHalfOpen counts a connection that becomes half-open (1), or no longer is (−1).
func (c *conn) countHalfOpen(delta int) {
	l, peer := c.listener, c.route.Dst
	if !c.validated {
		c.m.halfOpen.unvalidated += delta
		l.unvalidated += delta
		return
	}
	c.m.halfOpen.validated += delta
	l.validated += delta
	if l.of[peer] += delta; l.of[peer] == 0 {
		delete(l.of, peer)
	}
}
