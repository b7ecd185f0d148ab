package cm

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// state is a connection's (IBTA Vol 1 §12.9.5).
type state uint8

const (
	idle         state = iota
	reqSent            // active: waits for REP
	mraReqRcvd         // and was told that it takes longer
	repRcvd            // active: the application is to move its QP and Establish
	reqRcvd            // passive: the application is to Accept or Reject
	repSent            // passive: waits for RTU
	mraRepRcvd         // and was told that it takes longer
	established        //
	dreqSent           // waits for DREP
	dreqRcvd           // the application is to Disconnect
	timewait           // over; packets may be under way
	sidrReqSent        // waits for SIDR_REP
	sidrReqRcvd        // the application is to Accept or Reject
	sidrAnswered       // a repeated request gets the same answer
)

var stateNames = [...]string{"idle", "waiting for the peer's reply", "waiting for the peer's delayed reply",
	"waiting for Establish", "waiting for Accept or Reject", "waiting for the peer to be ready",
	"waiting for the peer to be ready after a delay", "established", "disconnecting", "disconnected by the peer",
	"in time wait", "resolving the service", "waiting for Accept or Reject", "answered"}

func (s state) String() string { return stateNames[s] }

// unanswered: a listener's backlog counts it.
func (s state) unanswered() bool { return s == reqRcvd || s == sidrReqRcvd }

// halfOpen: a stranger can bring it about with one datagram.
func (s state) halfOpen() bool {
	return s.unanswered() || s == repSent || s == mraRepRcvd
}

// conn is one end of a connection, or of a service ID resolution. Manager.mu guards it.
type conn struct {
	m        *Manager
	handler  rdmacm.Handler
	listener *listener // of a passive one
	state    state
	closed   bool // the application has; what is left to say to the peer is still said
	active   bool
	ud       bool
	proven   bool // the peer that asked has shown that it is there
	ended    bool // Disconnected was reported

	route                 rdmacm.Route
	localPort, remotePort uint16
	serviceID             uint64
	path                  *sharedPath // nil once it is over

	localID, remoteID uint32
	remoteGUID        uint64
	tid               uint64 // of the handshake; of the peer's DREQ while that is unanswered
	localQPN          uint32
	remoteQPN         uint32
	qpType            verbs.QPType
	sendPSN, recvPSN  uint32
	mtu               verbs.MTU
	flowLabel         uint32
	responder         uint8 // READs and atomics that the peer may have outstanding here
	initiator         uint8 // and we there
	retryCount        uint8
	rnrRetry          uint8
	ackTimeout        uint8 // of the QP, and for time wait: an exponent
	ackOption         uint8 // what the application set instead, or 0
	qkey              uint32
	noFailover        bool // the peer asked for an alternate path

	timer      timers.Timer
	due        time.Time     // of what the timer is for; zero: nothing
	timeout    time.Duration // for an answer
	maxRetries int
	retries    int
	msg        *[mad.Size]byte // wants an answer; of a UD service, the answer

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
		c.m.halfOpen.add(c.proven, delta(s.halfOpen()))
		if !c.proven {
			c.listener.strangers += delta(s.halfOpen())
		}
		if c.m.halfOpen.strangers == 0 && c.m.asking != nil && time.Since(c.m.lastHeld) > heldFor {
			c.m.forgetHeld()
		}
	}
	if old.unanswered() != s.unanswered() {
		c.listener.pending.add(c.proven, delta(s.unanswered()))
	}
	if (old == dreqSent) != (s == dreqSent) {
		c.m.countLeaving(delta(s == dreqSent))
	}
}

func delta(more bool) int {
	if more {
		return 1
	}
	return -1
}

// peer is the key of something that the peer calls num.
func (c *conn) peer(num uint32) peerKey { return peerKey{c.route.Dst, c.remoteGUID, num} }

// forgetPeer lets the peer use its communication ID and its QP anew.
func (c *conn) forgetPeer() {
	if k := c.peer(c.remoteID); c.m.byID[k] == c {
		delete(c.m.byID, k)
	}
	if k := c.peer(c.remoteQPN); c.m.byQP[k] == c {
		delete(c.m.byQP, k)
	}
}

// release makes the connection idle, known to nobody but the application.
func (c *conn) release() {
	c.set(idle)
	c.due, c.msg = time.Time{}, nil
	c.m.cfg.Timers.Remove(&c.timer)
	c.forgetPeer()
	if k := c.sidrKey(); c.m.sidr[k] == c {
		delete(c.m.sidr, k)
	}
	if c.localID != 0 && c.m.ids.Get(c.localID) == c {
		c.m.ids.Delete(c.localID)
	}
	if c.path != nil {
		c.m.keepPath(c.path) // a REJ is sent once, and the application may destroy the ID at once
		c.path = nil
	}
}

// sendMsg sends a message that wants no answer.
func (c *conn) sendMsg(tid uint64, msg mad.Message) { c.m.send(c.path, tid, msg) }

// ask sends a message, and again until it is answered or has been sent often enough.
func (c *conn) ask(tid uint64, msg mad.Message) {
	c.sendMsg(tid, msg)
	kept := c.m.buf
	c.msg, c.retries = &kept, 0
	c.arm(c.timeout)
}

// answered: nothing is asked any more.
func (c *conn) answered() {
	c.msg, c.due = nil, time.Time{}
	c.m.cfg.Timers.Stop(&c.timer)
}

func (c *conn) arm(d time.Duration) {
	c.due = time.Now().Add(d)
	c.m.cfg.Timers.Arm(&c.timer, c.due)
}

// stateError is for a call that does not fit the state.
func (c *conn) stateError(op string, want string) error {
	if c.closed {
		return verbs.Errorf(verbs.ErrDestroyed, op, "the connection is closed")
	}
	return verbs.Errorf(verbs.ErrInvalid, op, "the connection to %v is %v; want it %s",
		c.dst(), c.state, want)
}

// privateData checks a length.
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
