package cm

import (
	"encoding/binary"
	"io"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Requests of strangers. A request is one datagram, whose source anybody can forge, and what it
// brings about lasts a minute if nobody answers the REP. So a listener takes only so many from
// senders that have not shown that they are there. Above that a request is held, and its sender is
// sent a DREQ for a connection that does not exist: whoever speaks IB CM answers it with a DREP of
// the same transaction ID, without a state (IBTA Vol 1 §12.9.7, and so does Linux). With that the
// request is taken. Held requests displace the oldest; a flood of 100,000 a second leaves a peer
// 160 ms to answer.

// held is a request that waits for its sender's DREP.
type held struct {
	tid uint64 // of the DREQ: its place in Manager.held, and random bits; 0: it has been answered
	Datagram
	mad [mad.Size]byte
}

// hold keeps a request, and asks whether its sender is there. id is what the sender calls it, qpn
// the QP that it is for.
func (m *Manager) hold(d *Datagram, id, qpn uint32) {
	m.Counters.Held.Add(1)
	if m.asking == nil {
		c := m.newConn(nil, rdmacm.Route{}) // a communication ID that DREPs come to
		var err error
		if c.localID, err = m.ids.Insert(c); err != nil {
			return
		}
		m.asking = c
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
	m.lastHeld = time.Now()
	h := &m.held[m.nextHeld]
	h.tid = (binary.BigEndian.Uint64(b[:])|1<<63)&^(maxHeld-1) | uint64(m.nextHeld)
	h.Datagram = *d
	h.MAD = nil
	copy(h.mad[:], d.MAD)
	m.send(p, h.tid, &mad.DREQ{LocalCommID: m.asking.localID, RemoteCommID: id, RemoteQPN: qpn})
	m.putPath(p)
}

// proven takes the request whose sender has answered a DREQ.
func (m *Manager) proven(d *Datagram, tid uint64) {
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
		return // it was parsed before it was held
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

// forgetHeld gives the memory back, as no stranger's request is unanswered any more, and none was
// held for a while.
func (m *Manager) forgetHeld() {
	m.held, m.nextHeld = nil, 0
	if m.asking != nil {
		m.ids.Delete(m.asking.localID)
		m.asking = nil
	}
}

// takesStrangers reports whether one more request may be taken from a sender that has not shown
// that it is there.
func (l *listener) takesStrangers() bool {
	return l.strangers < l.backlog && l.m.halfOpen.strangers < maxHalfOpen
}

// room reports whether one more request may be taken from a sender that is there.
func (l *listener) room() bool {
	if l.pending.proven < l.backlog && l.m.halfOpen.proven < maxHalfOpen {
		return true
	}
	l.m.Counters.Dropped.Add(1)
	return false
}

// counts are numbers of connections that the peer has asked for.
type counts struct {
	strangers int // of peers that have not shown that they are there
	proven    int // of the others
}

func (n *counts) add(proven bool, delta int) {
	if proven {
		n.proven += delta
	} else {
		n.strangers += delta
	}
}
