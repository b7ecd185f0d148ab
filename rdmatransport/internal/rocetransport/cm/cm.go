// Package cm sets up and tears down RoCEv2 connections. It implements the communication management
// of IBTA Vol 1 chapter 12, over datagrams between general services QPs, and behaves like Linux's
// ib_cm and rdma_cm.
//
// Receive path: the GSI passes a datagram to Manager.receive, which finds the connection by its
// random communication ID and the peer's address. It then calls the message's handler. Handlers of
// the active side are in active.go, those of the passive side in passive.go, and those of either
// side at the end in teardown.go. The datagram service is in sidr.go. Send path: a connection
// formats a message and sends it on its path. Messages that need an answer are kept and
// retransmitted by the connection's timer (retry.go).
//
// conn.go has a connection and its states, paths.go the paths that connections share, and qpattr.go
// the attributes of its QP. listen.go has the listeners, reserve.go their ports, and validate.go
// protects them from floods. drain.go waits for the ends of connections.
//
// One lock protects the manager and all of its connections. Events are queued under the lock. The
// goroutine of the datagram or timeout delivers them after it has released the lock, in order for
// each connection (events.go).
package cm

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/access"
	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// GSI is the general services QP (QP 1) of the device's ports.
type GSI interface {
	// Path opens a path from one of the port's addresses.
	Path(port uint8, a stack.PathAttr) (Path, error)
	// Receive installs the handler of datagrams to QP 1. Nil removes it; a call may still be in
	// progress.
	Receive(func(*Datagram))
}

// Path is a path to QP 1 of another host.
type Path interface {
	// Send sends one MAD, unreliably.
	Send(*[mad.Size]byte)
	Close()
}

// Datagram is a received MAD. Its bytes are valid during the call.
type Datagram struct {
	Port         uint8
	Src, Dst     netip.Addr
	TrafficClass uint8
	Priority     uint8   // of the frame
	Via          [6]byte // the source MAC address; zero if unknown
	MAD          []byte
}

// Config is the configuration of a manager.
type Config struct {
	GSI      GSI
	Timers   *timers.Queue
	Rand     io.Reader   // of communication IDs, transaction IDs and first PSNs; nil is crypto/rand
	GUID     uint64      // of the node
	AckDelay uint8       // the device's local CA ACK delay, 4.096 µs × 2^n
	MaxDepth uint8       // the largest number of outstanding READs and atomics of a QP, on either side
	IDs      stack.Range // of communication IDs; the zero Range is all
	// Shared returns the device's ports with an address that other processes share. An unspecified
	// address is any.
	Shared func(netip.Addr) []stack.Shared
	// GIDIndex returns the index of an address in a port's GID table, or -1.
	GIDIndex func(port uint8, a netip.Addr) int
	Access   *access.Control
	// MTU returns a port's active MTU.
	MTU func(port uint8) verbs.MTU
	// BeforeDisconnect is called with the number of the local QP before a DREQ is sent, to send
	// delayed packets of the QP. The manager is locked. Nil if nothing is delayed.
	BeforeDisconnect func(qpn uint32)
	// CarrierExpected reports whether a port has no carrier, but is expected to have one soon, because
	// a shared hub is being replaced. Nil if there is no such port.
	CarrierExpected func(port uint8) bool
}

// Manager is a device's connection manager.
type Manager struct {
	Counters Counters

	cfg Config

	mu        sync.Mutex // protects the fields below, and all connections
	closed    bool
	ids       *keys.Table[conn] // by local communication ID; includes SIDR requests
	listeners map[uint64][]*listener
	byID      map[peerKey]*conn // by the peer's communication ID
	byQP      map[peerKey]*conn // by the peer's QP
	sidr      map[peerKey]*conn // by the peer's SIDR request ID
	halfOpen  counts            // number of half-open connections
	held      []held            // see validate.go
	nextHeld  int               // index of the last one in held
	lastHeld  time.Duration     // time of the last one
	// Holds the communication ID for DREPs to validate peers; nil if held is empty.
	validator     *conn
	disconnecting int           // connections that wait for DREP
	drained       chan struct{} // closed when disconnecting is 0; nil if nothing waits
	draining      bool          // Drain was called
	paths         map[pathKey]*sharedPath
	replies       [replyPaths]*sharedPath
	nextReply     int
	ready         []*conn // connections with events
	eventTimer    timers.Timer
	buf           [mad.Size]byte // buffer for one message
}

// peerKey identifies an object of a peer. It includes the source address of the peer's datagrams,
// because everything that a peer says in a message may be forged.
type peerKey struct {
	addr netip.Addr
	guid uint64
	num  uint32
}

// New starts a manager.
func New(cfg Config) *Manager {
	if cfg.Rand == nil {
		cfg.Rand = stack.Clock{}.Rand()
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
	m.eventTimer.Init(m.deliverOnTimer)
	cfg.GSI.Receive(m.receive)
	return m
}

// Close drops all connections. No events follow except those in progress. Peers are not notified;
// to notify them, close the connections first.
func (m *Manager) Close() {
	m.cfg.GSI.Receive(nil)
	for _, l := range m.close() {
		_ = l.held.Close()
	}
}

// close is Close without the ports reserved by listeners.
func (m *Manager) close() (listeners []*listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, l := range m.listeners {
		listeners = append(listeners, l...)
	}
	for _, c := range m.ids.All() {
		if c == m.validator {
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
	m.cfg.Timers.Remove(&m.eventTimer)
	return listeners
}

// Len returns the number of connections, including half-open and waiting ones.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.validator != nil {
		return m.ids.Len() - 1
	}
	return m.ids.Len()
}

// receive handles a datagram to QP 1 with the right Q_Key.
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
		if m.validator != nil && msg.RemoteCommID == m.validator.localID {
			m.onValidated(d, h.TID)
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
	default: // also APR, as LAP is never sent
		m.Counters.Malformed.Add(1)
	}
}

// lookup returns the connection with a local communication ID if d is from its peer, or nil.
func (m *Manager) lookup(d *Datagram, id uint32) *conn {
	c := m.ids.Get(id)
	if c == nil || c.route.Dst != d.Src || c.route.Src != d.Dst || c.route.PortNum != d.Port {
		return nil
	}
	return c
}

// reply answers a datagram that has no connection.
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

// random returns a random number of 32 bits.
func (m *Manager) random() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(m.cfg.Rand, b[:]); err != nil {
		return 0, fmt.Errorf("connection manager: random numbers: %w", err)
	}
	return binary.BigEndian.Uint32(b[:]), nil
}

const mask24 = 1<<24 - 1
