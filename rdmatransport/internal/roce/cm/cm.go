// Package cm sets up and tears down RoCEv2 connections: the communication management of IBTA Vol 1
// chapter 12 over datagrams between general services QPs, with the behaviour of Linux's ib_cm and
// rdma_cm.
//
// The way of a message. In: the GSI hands a datagram to Manager.receive, which finds the connection
// by its random communication ID and the peer's address and calls the message's handler: those of
// the side that asks are in active.go, of the side that answers in passive.go, of both at the end
// in teardown.go; sidr.go has the datagram service. Out: a connection formats a message and sends
// it on its path; what wants an answer is kept and sent again by the connection's timer (retry.go).
//
// One lock guards the manager and all of its connections. Events are queued under it, and handed
// over without it by the goroutine that brought the datagram or the timeout, in order for each
// connection (events.go).
package cm

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// GSI is the general services QP (QP 1) of the device's ports.
type GSI interface {
	// Path prepares to send from one of the port's addresses.
	Path(port uint8, a stack.PathAttr) (Path, error)
	// Receive installs the function that each datagram to QP 1 goes to. Nil removes it; a call may
	// still be running.
	Receive(func(*Datagram))
}

// Path is a way to QP 1 of another host.
type Path interface {
	// Send sends one MAD; nobody reports whether it arrives.
	Send(*[mad.Size]byte)
	Close()
}

// Datagram is a MAD that arrived; its bytes are valid during the call.
type Datagram struct {
	Port         uint8
	Src, Dst     netip.Addr
	TrafficClass uint8
	Priority     uint8   // of the frame
	Via          [6]byte // the MAC address that it came from; zero if that is not known
	MAD          []byte
}

// Config is what a manager stands on.
type Config struct {
	GSI      GSI
	Timers   *timers.Queue
	Rand     io.Reader   // of communication IDs, transaction IDs and first PSNs; nil is crypto/rand
	GUID     uint64      // of the node
	AckDelay uint8       // the device's local CA ACK delay, 4.096 µs × 2^n
	MaxDepth uint8       // the most READs and atomics that a QP may have outstanding, on either side
	IDs      stack.Range // of communication IDs; the zero Range stands for all
	// Shared are the device's ports with an address, unspecified meaning any, that other processes
	// have as well.
	Shared func(netip.Addr) []stack.Shared
	// GIDIndex is where an address is in a port's GID table, -1 if it is not.
	GIDIndex func(port uint8, a netip.Addr) int
	// MTU is a port's active MTU.
	MTU func(port uint8) verbs.MTU
	// Ending is called with the number of this side's QP before its peer is asked to disconnect:
	// what the QP has put off goes first. The manager is locked. Nil if nothing is put off.
	Ending func(qpn uint32)
	// Returns reports whether a port has no carrier, and will most likely have one soon, as where a
	// hub that it shares is being replaced. Nil if there is no such port.
	Returns func(port uint8) bool
}

// Manager is a device's connection manager.
type Manager struct {
	Counters Counters

	cfg Config

	mu        sync.Mutex // everything below, and every connection
	closed    bool
	ids       *keys.Table[conn] // by local communication ID; a SIDR request's too
	listeners map[uint64][]*listener
	byID      map[peerKey]*conn // by the peer's communication ID
	byQP      map[peerKey]*conn // by the peer's QP
	sidr      map[peerKey]*conn // by the peer's SIDR request ID
	halfOpen  counts            // connections in a state that is
	held      []held            // see held.go
	nextHeld  int               // in held: the last
	lastHeld  time.Time         // when that came
	asking    *conn             // has the communication ID that is answered to; nil if held is empty
	leaving   int               // connections that wait for DREP
	drained   chan struct{}     // closed when leaving is 0; nil if nobody waits
	draining  bool              // Drain was called
	paths     map[pathKey]*sharedPath
	replies   [replyPaths]*sharedPath
	nextReply int
	ready     []*conn // have events
	kick      timers.Timer
	buf       [mad.Size]byte // to format a message in
}

// peerKey names something that a peer has. The address that its datagrams come from is part of it:
// what a peer says of itself can be said by anyone.
type peerKey struct {
	addr netip.Addr
	guid uint64
	num  uint32
}

// New starts a manager.
func New(cfg Config) *Manager {
	if cfg.Rand == nil {
		cfg.Rand = rand.Reader
	}
	if cfg.IDs == (stack.Range{}) {
		cfg.IDs.Mask = 1<<32 - 1
	}
	m := &Manager{
		cfg:       cfg,
		ids:       keys.NewRange[conn](cfg.IDs.Base, cfg.IDs.Mask, cfg.Rand, nil),
		listeners: make(map[uint64][]*listener),
		byID:      make(map[peerKey]*conn),
		byQP:      make(map[peerKey]*conn),
		sidr:      make(map[peerKey]*conn),
		paths:     make(map[pathKey]*sharedPath),
	}
	m.kick.Init(m.deliverKicked)
	cfg.GSI.Receive(m.receive)
	return m
}

// Close forgets every connection; no event follows but those already on their way. Peers are not
// told: whoever wants that closes the connections first.
func (m *Manager) Close() {
	m.cfg.GSI.Receive(nil)
	for _, l := range m.close() {
		_ = l.held.Close()
	}
}

// close is Close but for the ports that listeners have reserved.
func (m *Manager) close() (listeners []*listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, l := range m.listeners {
		listeners = append(listeners, l...)
	}
	for _, c := range m.ids.All() {
		if c == m.asking {
			continue
		}
		c.closed, c.events = true, nil
		c.release()
	}
	for _, c := range m.sidr {
		c.closed, c.events = true, nil
		c.release()
	}
	m.forgetHeld()
	clear(m.listeners)
	for i, p := range m.replies {
		if p != nil {
			m.putPath(p)
			m.replies[i] = nil
		}
	}
	m.cfg.Timers.Remove(&m.kick)
	return listeners
}

// Len is the number of connections that the manager remembers, half-open and waiting ones included.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking != nil {
		return m.ids.Len() - 1
	}
	return m.ids.Len()
}

// receive takes a datagram that arrived at QP 1 with the right Q_Key.
func (m *Manager) receive(d *Datagram) {
	h, data, err := mad.Parse(d.MAD)
	if err != nil {
		m.Counters.Malformed.Add(1)
		return
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.dispatch(d, h, data)
	m.unlockAndDeliver()
}

func (m *Manager) dispatch(d *Datagram, h mad.Header, data []byte) {
	m.Counters.received(h.Attr)
	switch h.Attr {
	case mad.AttrREQ:
		var msg mad.REQ
		mad.Decode(data, &msg)
		m.onREQ(d, h.TID, &msg, false)
	case mad.AttrMRA:
		var msg mad.MRA
		mad.Decode(data, &msg)
		if c := m.lookup(d, msg.RemoteCommID); c != nil {
			c.onMRA(h.TID, &msg)
		}
	case mad.AttrREJ:
		var msg mad.REJ
		mad.Decode(data, &msg)
		m.onREJ(d, h.TID, &msg)
	case mad.AttrREP:
		var msg mad.REP
		mad.Decode(data, &msg)
		m.onREP(d, h.TID, &msg)
	case mad.AttrRTU:
		var msg mad.RTU
		mad.Decode(data, &msg)
		if c := m.lookup(d, msg.RemoteCommID); c != nil && c.remoteID == msg.LocalCommID {
			c.onRTU()
		}
	case mad.AttrDREQ:
		var msg mad.DREQ
		mad.Decode(data, &msg)
		m.onDREQ(d, h.TID, &msg)
	case mad.AttrDREP:
		var msg mad.DREP
		mad.Decode(data, &msg)
		if m.asking != nil && msg.RemoteCommID == m.asking.localID {
			m.proven(d, h.TID)
		} else if c := m.lookup(d, msg.RemoteCommID); c != nil && c.remoteID == msg.LocalCommID {
			c.onDREP()
		}
	case mad.AttrSIDRREQ:
		var msg mad.SIDRREQ
		mad.Decode(data, &msg)
		m.onSIDRREQ(d, h.TID, &msg, false)
	case mad.AttrSIDRREP:
		var msg mad.SIDRREP
		mad.Decode(data, &msg)
		if c := m.lookup(d, msg.RequestID); c != nil {
			c.onSIDRREP(h.TID, &msg)
		}
	case mad.AttrLAP:
		var msg mad.LAP
		mad.Decode(data, &msg)
		m.onLAP(d, h.TID, &msg)
	default: // APR too: LAP is never sent
		m.Counters.Malformed.Add(1)
	}
}

// lookup is the connection that the peer who sent d calls by its communication ID here, or nil. A
// number that is another peer's counts as unknown.
func (m *Manager) lookup(d *Datagram, id uint32) *conn {
	c := m.ids.Get(id)
	if c == nil || c.route.Dst != d.Src || c.route.Src != d.Dst || c.route.Port != d.Port {
		return nil
	}
	return c
}

// reply answers a datagram that no connection is there for.
func (m *Manager) reply(d *Datagram, tid uint64, msg mad.Message) {
	p, err := m.replyPath(d)
	if err != nil {
		return
	}
	m.send(p, tid, msg)
	m.putPath(p)
}

func (m *Manager) send(p *sharedPath, tid uint64, msg mad.Message) {
	mad.Encode(&m.buf, tid, msg)
	m.Counters.sent(msg.Attr())
	p.Send(&m.buf)
}

// onLAP refuses an alternate path.
func (m *Manager) onLAP(d *Datagram, tid uint64, msg *mad.LAP) {
	apr := mad.APR{LocalCommID: msg.RemoteCommID, RemoteCommID: msg.LocalCommID, Status: mad.APRInvalidCommID}
	if c := m.lookup(d, msg.RemoteCommID); c != nil && c.remoteID == msg.LocalCommID {
		if c.state != established {
			return
		}
		apr.Status = mad.APRUnsupported
	}
	m.reply(d, tid, &apr)
}

// random is a random number of 32 bits.
func (m *Manager) random() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(m.cfg.Rand, b[:]); err != nil {
		return 0, fmt.Errorf("connection manager: random numbers: %w", err)
	}
	return binary.BigEndian.Uint32(b[:]), nil
}

const mask24 = 1<<24 - 1
