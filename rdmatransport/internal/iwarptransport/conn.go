package iwarptransport

// A connection is a TCP stream on which MPA's request and reply frames are exchanged (RFC 5044 §7,
// RFC 6581). rdma_cm sets it up. A QP then takes over the stream. Events are delivered one at a
// time, on a goroutine that holds no lock.

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Two SoftRNICs with Config.LongFPDUs negotiate FPDUs longer than a TCP segment by these reserved
// bits of MPA's frames. The links must segment TCP. The initiator sets longFPDURequest in its
// request, and the responder longFPDUReply in its reply. The bits differ because siw copies the
// reserved bits of a request into its reply.
const (
	longFPDURequest = 0x04
	longFPDUReply   = 0x02
)

// conn is one end of a connection. It implements rdmacm.ProviderConn.
type conn struct {
	e         *Engine
	h         rdmacm.Handler
	peer      netip.Addr
	cancel    context.CancelFunc // initiator: ends the set-up; nil after it. Protected by mu
	request   *request           // responder: until it is accepted
	port      uint8              // of the device
	initiator bool

	// These fields are set before a QP has the stream.
	revision uint8   // of MPA
	rtr      rtrKind // owed by the initiator
	ird, ord uint8
	ordLimit uint8 // the largest ORD that the peer allows
	sink     uint32
	stream   stack.Stream
	framer   mpa.Sender
	deframer mpa.Receiver
	mulpdu   int
	piece    int // the largest write to the stream

	// These fields are for receiving. The QP's lock protects them.
	active     bool   // data has arrived since the idle timer was set
	idleTimer  bool   // the read deadline is set, to detect an idle stream
	reads      uint32 // how often data has arrived since the stream was idle; used by the reader
	handled    int    // bytes passed by one call of stream.Receive
	fault      error  // the error in these bytes
	onReadable func() // readReady
	// Too much of what was received has not arrived in a backend.
	placingFull bool

	// These fields are for streams with both ends in this process: see direct.go. The lock of this
	// end's QP protects all of them except unpaired and peerConn.
	unpaired  *endpoint // protected by endpoints.mu
	peerConn  atomic.Pointer[conn]
	sent      uint64 // bytes of FPDUs sent
	received  uint64 // bytes of FPDUs received
	peerWaits bool   // peerConn waits until everything that it sent is received

	mu         sync.Mutex // taken after the QP's lock
	state      connState
	ended      bool // the stream ended before Establish, which reports the end
	peerClosed bool // the peer closed the connection before its request was answered
	closed     bool // by Close: there are no more events
	qp         *qp
	events     []*rdmacm.ConnEvent // nil if no goroutine delivers them
}

// request is a peer's connection request.
type request struct {
	frame    mpa.Frame
	listener *listener
}

type connState uint8

const (
	starting    connState = iota // frames are being exchanged
	requested                    // responder: the application must answer
	responded                    // initiator: the application must call Establish
	established                  //
	over
)

var connStates = [...]string{"starting", "requested", "responded", "established", "over"}

func (s connState) String() string { return connStates[s] }

// emit queues an event. c.mu is held.
func (c *conn) emit(e *rdmacm.ConnEvent) {
	if c.closed {
		return
	}
	e.Conn = c
	idle := c.events == nil
	c.events = append(c.events, e)
	if idle {
		go c.deliver()
	}
}

// report delivers the first event before it returns.
func (c *conn) report(e *rdmacm.ConnEvent) {
	c.mu.Lock()
	e.Conn = c
	report := !c.closed && c.events == nil
	if report {
		c.events = append(c.events, e)
	}
	c.mu.Unlock()
	if report {
		c.deliver()
	}
}

// deliver calls the handler for each queued event.
func (c *conn) deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.events) > 0 && !c.closed {
		e := c.events[0]
		c.events = c.events[1:] // not nil
		c.mu.Unlock()
		c.h(e)
		c.mu.Lock()
	}
	c.events = nil
}

// expect returns an error of operation op if the connection is in none of the given states. c.mu is
// held.
func (c *conn) expect(op string, want ...connState) error {
	switch {
	case slices.Contains(want, c.state):
		return nil
	case c.peerClosed:
		return verbs.Errorf(syscall.ECONNRESET, op, "the peer has closed the iWARP connection, or broken its rules")
	}
	return verbs.Errorf(verbs.ErrInvalid, op, "the iWARP connection is %v", c.state)
}

// startMPA sets up framing as negotiated by request and reply: markers in each direction, CRCs, and
// FPDUs longer than a TCP segment.
func (c *conn) startMPA(markersOut, markersIn, crc, longFPDUs bool) error {
	out := mpa.Config{Markers: markersOut, CRC: crc}
	c.framer = mpa.NewSender(out)
	c.deframer = mpa.NewReceiver(mpa.Config{Markers: markersIn, CRC: crc})
	c.mulpdu = out.MaxULPDU(c.stream.MSS())
	c.piece = c.stream.MSS()
	if c.stream.Offloaded() {
		c.piece = stack.MaxPiece
		if longFPDUs && !markersOut {
			c.mulpdu = mpa.MaxMULPDU
		}
	}
	var sink [4]byte
	if _, err := io.ReadFull(c.e.rand, sink[:]); err != nil {
		return err
	}
	c.sink = binary.BigEndian.Uint32(sink[:])
	return nil
}

// bind gives the stream to a QP that enters RTS, and sets IRD and ORD from the QP's attributes.
func (c *conn) bind(q *qp, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	const op = "modify QP"
	if c.qp != nil {
		return verbs.Errorf(verbs.ErrBusy, op, "LLPStream belongs to QP %#x", c.qp.num)
	}
	if err := c.expect(op, requested, responded); err != nil {
		return err
	}
	if !c.initiator {
		if err := c.startMPA(c.request.frame.Markers, c.e.config.Markers, c.crc(), c.agreesLongFPDUs()); err != nil {
			return err
		}
	}
	if mask&verbs.QPAttrMaxDestRDAtomic != 0 {
		c.ird = attr.MaxDestRDAtomic
	}
	if mask&verbs.QPAttrMaxQPRDAtomic != 0 {
		c.ord = attr.MaxRDAtomic
	}
	c.ord = min(c.ord, c.ordLimit)
	if !c.initiator && c.rtrIsRead() {
		c.ird = max(c.ird, 1)
	}
	c.qp = q
	return nil
}

// mayReceive reports whether the peer may send FPDUs. An initiator must wait for the reply.
func (c *conn) mayReceive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.initiator || c.state == established
}

// QPAttr implements rdmacm.ProviderConn.
func (c *conn) QPAttr(to verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	attr := verbs.QPAttr{QPState: to}
	switch to {
	case verbs.StateInit:
		attr.PortNum = c.port
		attr.QPAccessFlags = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
		return attr, verbs.QPAttrState | verbs.QPAttrPort | verbs.QPAttrAccessFlags, nil
	case verbs.StateRTR:
		return attr, 0, nil // iWARP has no RTR state
	case verbs.StateRTS:
		if err := c.expect("get QP attributes", requested, responded); err != nil {
			return attr, 0, err
		}
		attr.LLPStream = c
		attr.MaxDestRDAtomic, attr.MaxRDAtomic = min(c.ird, MaxReads), min(c.ord, MaxReads)
		return attr, verbs.QPAttrState | verbs.QPAttrLLPStream | verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMaxQPRDAtomic, nil
	}
	return attr, 0, verbs.Errorf(verbs.ErrInvalid, "get QP attributes", "a connection knows none for %v", to)
}

// Establish implements rdmacm.ProviderConn.
func (c *conn) Establish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.expect("establish", responded); err != nil {
		return err
	}
	if c.qp == nil {
		return verbs.Errorf(verbs.ErrInvalid, "establish", "no QP has the connection's stream")
	}
	c.state = established
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Established})
	if c.ended {
		c.disconnected()
	}
	return nil
}

// Notify implements rdmacm.ProviderConn. It does nothing, because the reply establishes an iWARP
// connection.
func (c *conn) Notify() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expect("notify", established)
}

// readFrame reads an MPA request or reply frame from the stream, and nothing after it.
func readFrame(r io.Reader, reply bool) (mpa.Frame, error) {
	b := make([]byte, mpa.HeaderLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return mpa.Frame{}, err
	}
	n, err := mpa.FrameLen(b)
	if err != nil {
		return mpa.Frame{}, err
	}
	// The length is exact, because the frame keeps its private data.
	b = append(b, make([]byte, n-mpa.HeaderLen)...)
	if _, err := io.ReadFull(r, b[mpa.HeaderLen:]); err != nil {
		return mpa.Frame{}, err
	}
	f, _, err := mpa.Parse(b)
	if err == nil && f.Reply != reply {
		err = fmt.Errorf("%w: both ends are the same side", mpa.ErrKey)
	}
	return f, err
}

// writeFrame sends an MPA request or reply frame.
func writeFrame(w io.Writer, f *mpa.Frame) error {
	b := make([]byte, f.Len())
	if _, err := f.Encode(b); err != nil {
		return verbs.Errorf(verbs.ErrInvalid, "send MPA frame", "%v", err)
	}
	_, err := w.Write(b)
	return err
}

// agreesLongFPDUs reports whether this side agrees to a request for FPDUs longer than a TCP
// segment.
func (c *conn) agreesLongFPDUs() bool {
	f := &c.request.frame
	return c.e.config.LongFPDUs && f.Revision != mpa.Revision1 && f.Reserved&longFPDURequest != 0
}

// rtrIsRead reports whether the ready-to-receive message will be a READ. Such a READ counts in the
// IRD.
func (c *conn) rtrIsRead() bool {
	e := &c.request.frame.Enhanced
	return c.request.frame.HasEnhanced && e.PeerToPeer && e.RDMARead && !e.RDMAWrite
}

// crc reports whether FPDUs have CRCs. They do if either side requires them.
func (c *conn) crc() bool { return c.request.frame.CRC || !c.e.config.NoCRC }

// PeerIdentity implements rdmacm.AuthenticatedConn, for streams that authenticate the peer.
func (c *conn) PeerIdentity() (rdmacm.Identity, bool) {
	c.mu.Lock()
	stream := c.stream
	c.mu.Unlock()
	a, ok := stream.(stack.Authenticated)
	if !ok {
		return rdmacm.Identity{}, false
	}
	id, ok := a.PeerIdentity()
	return rdmacm.Identity(id), ok
}
