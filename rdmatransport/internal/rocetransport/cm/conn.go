package cm

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// state is the state of a connection (IBTA Vol 1 §12.9.5).
type state uint8

const (
	idle         state = iota
	reqSent            // active: waits for REP
	mraReqRcvd         // the peer asked for more time
	repRcvd            // active: the application must move its QP and call Establish
	reqRcvd            // passive: the application must call Accept or Reject
	repSent            // passive: waits for RTU
	mraRepRcvd         // the peer asked for more time
	established        //
	dreqSent           // waits for DREP
	dreqRcvd           // the application must call Disconnect
	timewait           // closed; packets may still be in flight
	sidrReqSent        // waits for SIDR_REP
	sidrReqRcvd        // the application must call Accept or Reject
	sidrAnswered       // repeated requests get the same answer
)

var stateNames = [...]string{"idle", "waiting for the peer's reply", "waiting for the peer's delayed reply",
	"waiting for Establish", "waiting for Accept or Reject", "waiting for the peer to be ready",
	"waiting for the peer to be ready after a delay", "established", "disconnecting", "disconnected by the peer",
	"in time wait", "resolving the service", "waiting for Accept or Reject", "answered"}

func (s state) String() string { return stateNames[s] }

// unanswered reports whether the application has not answered the peer's request.
func (s state) unanswered() bool { return s == reqRcvd || s == sidrReqRcvd }

// halfOpen reports whether a single datagram can cause this state. The connection then counts in a
// listener's backlog.
func (s state) halfOpen() bool {
	return s.unanswered() || s == repSent || s == mraRepRcvd
}

// conn is one end of a connection or of a service ID resolution. Manager.mu protects it.
type conn struct {
	m         *Manager
	handler   rdmacm.Handler
	listener  *listener // of a passive connection
	state     state
	closed    bool // by the application; messages to the peer may still be sent
	active    bool
	ud        bool
	validated bool // the requesting peer's address is validated
	ended     bool // Disconnected was reported

	route                 rdmacm.Route
	localPort, remotePort uint16
	serviceID             uint64
	path                  *sharedPath // nil after the end

	localID, remoteID uint32
	remoteGUID        uint64
	tid               uint64 // of the handshake, or of the peer's DREQ until that is answered
	localQPN          uint32
	remoteQPN         uint32
	qpType            verbs.QPType
	sendPSN, recvPSN  uint32
	mtu               verbs.MTU
	flowLabel         uint32
	responder         uint8 // the largest number of the peer's outstanding READs and atomics
	initiator         uint8 // the largest number of local outstanding READs and atomics
	retryCount        uint8
	rnrRetry          uint8
	ackTimeout        uint8 // of the QP and of the time wait: an exponent
	ackOption         uint8 // set by the application instead, or 0
	qkey              uint32
	noFailover        bool // the peer asked for an alternate path

	timer      timers.Timer
	due        time.Duration // of the timer; 0 if none
	timeout    time.Duration // for an answer
	maxRetries int
	retries    int
	msg        *[mad.Size]byte // needs an answer, or is the answer of a UD service

	events     []rdmacm.ConnEvent
	delivering bool
}

func (m *Manager) newConn(h rdmacm.Handler, route rdmacm.Route) *conn {
	c := &conn{m: m, handler: h, route: route}
	c.timer.Init(c.expired)
	return c
}

// set changes the state.
func (c *conn) set(s state) {
	old := c.state
	c.state = s
	if old.halfOpen() != s.halfOpen() {
		c.countHalfOpen(delta(s.halfOpen()))
		if c.m.halfOpen.unvalidated == 0 && c.m.validator != nil && c.m.cfg.Timers.Now()-c.m.lastHeld > heldTimeout {
			c.m.forgetHeld()
		}
	}
	if (old == dreqSent) != (s == dreqSent) {
		c.m.countDisconnecting(delta(s == dreqSent))
	}
}

func delta(more bool) int {
	if more {
		return 1
	}
	return -1
}

// peerKey returns the key of an object that the peer calls num.
func (c *conn) peerKey(num uint32) peerKey { return peerKey{c.route.Dst, c.remoteGUID, num} }

// forgetPeer allows the peer to use its communication ID and its QP again.
func (c *conn) forgetPeer() {
	if k := c.peerKey(c.remoteID); c.m.byID[k] == c {
		delete(c.m.byID, k)
	}
	if k := c.peerKey(c.remoteQPN); c.m.byQP[k] == c {
		delete(c.m.byQP, k)
	}
}

// release makes the connection idle and removes it from all tables.
func (c *conn) release() {
	c.set(idle)
	c.due, c.msg = 0, nil
	c.m.cfg.Timers.Remove(&c.timer)
	c.forgetPeer()
	if k := c.sidrKey(); c.m.sidr[k] == c {
		delete(c.m.sidr, k)
	}
	if c.localID != 0 && c.m.ids.Get(c.localID) == c {
		c.m.ids.Delete(c.localID)
	}
	if c.path != nil {
		c.m.keepPath(c.path) // a REJ is sent once, and the application may close the ID right after it
		c.path = nil
	}
}

// sendMsg sends a message that needs no answer.
func (c *conn) sendMsg(tid uint64, msg mad.Message) { c.m.send(c.path, tid, msg) }

// sendRequest sends a message that needs an answer, and retransmits it until it is answered or
// retries are exhausted.
func (c *conn) sendRequest(tid uint64, msg mad.Message) {
	c.sendMsg(tid, msg)
	kept := c.m.buf
	c.msg, c.retries = &kept, 0
	c.arm(c.timeout)
}

// stopRetries ends retransmission.
func (c *conn) stopRetries() {
	c.msg, c.due = nil, 0
	c.m.cfg.Timers.Stop(&c.timer)
}

func (c *conn) arm(d time.Duration) {
	c.due = c.m.cfg.Timers.Now() + d
	c.m.cfg.Timers.ArmAt(&c.timer, c.due)
}

// stateError returns the error of a call in the wrong state.
func (c *conn) stateError(op string, want string) error {
	if c.closed {
		return verbs.Errorf(verbs.ErrClosed, op, "the connection is closed")
	}
	return verbs.Errorf(verbs.ErrInvalid, op, "the connection to %v is %v; want it %s",
		c.dst(), c.state, want)
}

// privateData checks the length of private data.
func privateData(op string, b []byte, limit int) error {
	if len(b) > limit {
		return verbs.Errorf(verbs.ErrInvalid, op, "private data of %d bytes: at most %d fit", len(b), limit)
	}
	return nil
}

// qpNum checks a QP number.
func qpNum(op string, n uint32) error {
	if n <= mad.QPN || n >= mask24 {
		return verbs.Errorf(verbs.ErrInvalid, op, "QP number %#x: want that of the QP, 0x2 to 0xfffffe", n)
	}
	return nil
}
