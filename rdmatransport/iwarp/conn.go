package iwarp

// A connection: a TCP stream on which MPA's frames are exchanged, for rdma_cm on one side and a QP on the other. Its
// events leave it one at a time, on a goroutine that has no lock. (RFC 5044 §7, RFC 6581)

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Config is how this end wants its streams.
type Config struct {
	// NoCRC says that this end can do without CRCs; they are left out if the peer says so too. RFC 5044 §4.4 wants that
	// to be an administrator's choice.
	NoCRC bool
	// Markers asks the peer to send markers.
	Markers bool
	// Revision is that of the requests that this end sends: 1 (RFC 5044) or 2 (RFC 6581). 0 is 2, and 1 on a second
	// connection if the peer closes the first one without a reply, as those do that know revision 1 only (RFC 6581 §10).
	// Then nothing is negotiated of depths and peer-to-peer mode, as in all connections of revision 1.
	Revision uint8
	// NoPeerToPeer leaves out the ready-to-receive message that lets the accepting side send first.
	NoPeerToPeer bool
	// SendFirst lets the accepting side send even so, a tenth of a second after its reply. RFC 5044 §7.1.2 forbids it: it
	// is for applications whose server speaks first to clients on siw, which does not ask for peer-to-peer mode.
	SendFirst bool
}

// largeRequest and largeReply, reserved bits of MPA's frames, are how two SoftRNICs agree on FPDUs that are longer than
// a segment, for links that do the segmentation. Others send neither: they are two bits because siw sends back the
// reserved bits of a request.
const (
	largeRequest = 0x04
	largeReply   = 0x02
)

// conn is one end of a connection. It implements rdmacm.ProviderConn.
type conn struct {
	e         *Engine
	h         rdmacm.Handler
	route     rdmacm.Route
	initiator bool
	cancel    context.CancelFunc // initiating side: ends the set-up
	listener  *listener          // of a ConnectRequest, until it is answered

	// Set before the stream is handed out.
	stream   stack.Stream
	framer   mpa.Sender
	deframer mpa.Receiver
	request  mpa.Frame // the peer's, on the accepting side
	mulpdu   int
	piece    int // the most that goes into the stream at once
	ird, ord int
	ordLimit int // the most that the peer takes
	sink     uint32
	rtr      rtrKind // that the initiator owes

	// Of reception, guarded by the QP's lock.
	taken   int   // bytes, of one Receive
	fault   error // what was wrong with them
	busy    bool  // something came since the read deadline was set
	watched bool  // it is set, for memory that may become idle

	// Where the other end is in this process, too: see direct.go. All but other is guarded by this end's QP's lock.
	place   place
	other   atomic.Pointer[conn]
	sent    uint64 // bytes of FPDUs
	fed     uint64 // bytes of them taken in
	awaited bool   // other waits until all that it sent is

	mu     sync.Mutex // after the QP's lock
	state  connState
	qp     *qp
	ended  bool // the stream has ended before Establish: that is told behind it
	left   bool // the peer has ended the connection before it was answered
	silent bool // Close was called: no events any more

	events  []*rdmacm.ConnEvent
	running bool
}

type connState uint8

const (
	starting    connState = iota // frames are being exchanged
	requested                    // accepting side: the application decides
	responded                    // initiating side: the application is to establish
	established                  //
	over
)

var connStates = [...]string{"starting", "requested", "responded", "established", "over"}

func (s connState) String() string { return connStates[s] }

// emit reports an event. c.mu is held.
func (c *conn) emit(e *rdmacm.ConnEvent) {
	if c.silent {
		return
	}
	e.Conn = c
	c.events = append(c.events, e)
	if !c.running {
		c.running = true
		go c.deliver()
	}
}

func (c *conn) deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.events) > 0 && !c.silent {
		e := c.events[0]
		c.events = c.events[1:]
		c.mu.Unlock()
		c.h(e)
		c.mu.Lock()
	}
	c.running = false
}

// expect checks the state for a call. c.mu is held.
func (c *conn) expect(op string, want ...connState) error {
	switch {
	case slices.Contains(want, c.state):
		return nil
	case c.left:
		return verbs.Errorf(syscall.ECONNRESET, op, "the peer has closed the iWARP connection, or broken its rules")
	}
	return verbs.Errorf(verbs.ErrInvalid, op, "the iWARP connection is %v", c.state)
}

// begin lays the stream out as both frames say. mine and theirs are the configuration's two directions.
func (c *conn) begin(markersOut, markersIn, crc, large bool) error {
	out := mpa.Config{Markers: markersOut, CRC: crc}
	c.framer = mpa.NewSender(out)
	c.deframer = mpa.NewReceiver(mpa.Config{Markers: markersIn, CRC: crc})
	c.mulpdu = out.MaxULPDU(c.stream.MSS())
	c.piece = c.stream.MSS()
	if c.stream.Offloaded() {
		c.piece = stack.MaxPiece
		if large && !markersOut {
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

// bind gives the stream to a QP that enters RTS, with the depths that were chosen for it.
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
		large := c.request.Reserved&largeRequest != 0
		if err := c.begin(c.request.Markers, c.e.config.Markers, c.crc(), large); err != nil {
			return err
		}
	}
	if mask&verbs.QPAttrMaxDestRDAtomic != 0 {
		c.ird = int(attr.MaxDestRDAtomic)
	}
	if mask&verbs.QPAttrMaxQPRDAtomic != 0 {
		c.ord = int(attr.MaxRDAtomic)
	}
	c.ord = min(c.ord, c.ordLimit)
	if !c.initiator && c.readyReads() {
		c.ird = max(c.ird, 1)
	}
	c.qp = q
	return nil
}

// mayReceive tells whether the peer may send FPDUs: an initiator waits for the reply.
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
		attr.PortNum = c.route.Port
		attr.QPAccessFlags = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
		return attr, verbs.QPAttrState | verbs.QPAttrPort | verbs.QPAttrAccessFlags, nil
	case verbs.StateRTR:
		return attr, 0, nil // iWARP has no such state
	case verbs.StateRTS:
		if err := c.expect("get QP attributes", requested, responded); err != nil {
			return attr, 0, err
		}
		attr.LLPStream = c
		attr.MaxDestRDAtomic, attr.MaxRDAtomic = uint8(min(c.ird, MaxReads)), uint8(min(c.ord, MaxReads))
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

// disconnected tells the end of an established connection. c.mu is held.
func (c *conn) disconnected() {
	c.state = over
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Disconnected})
}

// Notify implements rdmacm.ProviderConn: a stream needs no such help.
func (c *conn) Notify() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expect("notify", established)
}

// Disconnect implements rdmacm.ProviderConn. What is posted stays with the QP until that goes to ERR.
func (c *conn) Disconnect() error {
	c.mu.Lock()
	state, q := c.state, c.qp
	err := c.expect("disconnect", established)
	c.mu.Unlock()
	if state == over {
		return nil
	}
	if err == nil {
		q.leave(c)
	}
	return err
}

// streamEnded is called when the stream has come to its end, by the QP's reader. A peer may accept, send and close before
// the application here has established the connection, or found what was sent: that is no failure to connect.
func (c *conn) streamEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case established:
		c.disconnected()
	case responded:
		c.ended = true
	case requested:
		c.abandoned()
	default:
		c.state = over
	}
}

// Close implements rdmacm.ProviderConn.
func (c *conn) Close() {
	c.mu.Lock()
	was, stream, q := c.state, c.stream, c.qp
	c.state, c.silent = over, true
	c.mu.Unlock()
	c.answered()
	if c.cancel != nil {
		c.cancel()
	}
	switch {
	case stream == nil, was == over: // what ended it has closed the stream
	case was == requested:
		_ = c.refuse(nil)
	case q != nil:
		q.leave(c) // its reader closes it
	case was == responded:
		c.giveUp(mpa.ErrLocalCatastrophic)
	default:
		stream.Abort()
	}
}

// readFrame reads one of MPA's frames off the stream, and nothing behind it.
func readFrame(r io.Reader, reply bool) (mpa.Frame, error) {
	b := make([]byte, mpa.HeaderLen, mpa.MaxFrameLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return mpa.Frame{}, err
	}
	n, err := mpa.FrameLen(b)
	if err != nil {
		return mpa.Frame{}, err
	}
	if _, err := io.ReadFull(r, b[mpa.HeaderLen:n]); err != nil {
		return mpa.Frame{}, err
	}
	f, _, err := mpa.Parse(b[:n])
	if err == nil && f.Reply != reply {
		err = fmt.Errorf("%w: both ends are the same side", mpa.ErrKey)
	}
	return f, err
}

// writeFrame sends one of MPA's frames.
func writeFrame(w io.Writer, f *mpa.Frame) error {
	b := make([]byte, f.Len())
	if _, err := f.Encode(b); err != nil {
		return verbs.Errorf(verbs.ErrInvalid, "send MPA frame", "%v", err)
	}
	_, err := w.Write(b)
	return err
}
