package iwarptransport

// Set-up, initiator: the TCP connection, MPA's request, and the peer's reply. (RFC 5044 §7.1, RFC
// 6581 §4–§9)

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Connect opens a stream and requests a connection; see rdmacm.Provider.
func (e *Engine) Connect(attr *rdmacm.ConnectAttr, h rdmacm.Handler) (rdmacm.ProviderConn, error) {
	if attr.QPType != verbs.RC {
		return nil, verbs.Errorf(verbs.ErrNotSupported, "connect", "QP type %v over iWARP", attr.QPType)
	}
	f, err := e.newRequest(&attr.Param, e.config.Revision)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.timers.Clock().WithTimeout(context.Background(), startupTimeout)
	c := &conn{e: e, h: h, peer: attr.Dst, port: attr.PortNum, initiator: true, cancel: cancel}
	t := e.dials.enter(netip.AddrPortFrom(attr.Dst, attr.PeerPort))
	e.work.Go(func() {
		defer t.done()
		t.wait(e.timers.Clock(), dialWait)
		c.connect(ctx, attr, f, t.done)
	})
	return c, nil
}

// newRequest returns a request frame of MPA revision `revision`, with the application's parameters.
func (e *Engine) newRequest(p *rdmacm.ConnParam, revision uint8) (*mpa.Frame, error) {
	f := &mpa.Frame{
		Markers: e.config.Markers, CRC: !e.config.NoCRC, Revision: mpa.Revision2, PrivateData: p.PrivateData,
	}
	if revision == mpa.Revision1 {
		f.Revision = mpa.Revision1
	} else {
		f.HasEnhanced = true
		f.Enhanced = mpa.Enhanced{IRD: uint16(p.ResponderResources), ORD: uint16(p.InitiatorDepth)}
		if !e.config.NoPeerToPeer {
			f.Enhanced.PeerToPeer = true
			f.Enhanced.RDMAWrite, f.Enhanced.RDMARead, f.Enhanced.ZeroLengthSend = true, true, true
		}
	}
	if f.Len() > mpa.MaxFrameLen {
		return nil, verbs.Errorf(verbs.ErrInvalid, "connect", "private data of %d bytes is more than MPA's %d",
			len(p.PrivateData), mpa.MaxFrameLen-(f.Len()-len(p.PrivateData)))
	}
	return f, nil
}

// connect sets up the connection, or reports why that failed. onSent is called when the request is
// sent.
func (c *conn) connect(ctx context.Context, attr *rdmacm.ConnectAttr, request *mpa.Frame, onSent func()) {
	defer c.endSetup()
	reply, err := c.exchange(ctx, attr, request, onSent)
	if errors.Is(err, errUnanswered) && c.e.config.Revision == 0 {
		// A responder that only supports revision 1 behaves like this (RFC 6581 §10).
		request, err = c.e.newRequest(&attr.Param, mpa.Revision1)
		if err == nil {
			c.e.Counters.Revision1Retries.Add(1)
			reply, err = c.exchange(ctx, attr, request, onSent)
		}
	}
	if err != nil {
		c.failed(err)
		return
	}
	if err := c.handleReply(request, &reply, &attr.Param); err != nil {
		c.terminateSetup(err)
		c.failed(err)
	}
}

// endSetup cancels the timeout of the set-up.
func (c *conn) endSetup() {
	c.mu.Lock()
	cancel := c.cancel
	c.cancel = nil
	c.mu.Unlock()
	cancel()
}

// errUnanswered means that the peer received the request and closed the connection without a reply.
var errUnanswered = errors.New("iwarp: the peer has closed the connection instead of a reply")

// errRejected means, in a trace, that the peer's reply rejects the connection.
var errRejected = errors.New("iwarp: the peer has rejected the connection")

// exchange opens a stream, sends the request and reads the reply.
func (c *conn) exchange(ctx context.Context, attr *rdmacm.ConnectAttr, request *mpa.Frame, onSent func()) (reply mpa.Frame, err error) {
	deadline, _ := ctx.Deadline()
	stream, err := c.e.net.DialStream(ctx, netip.AddrPortFrom(attr.Src, attr.LocalPort),
		netip.AddrPortFrom(attr.Dst, attr.PeerPort))
	if err != nil {
		return reply, err
	}
	if !c.setStream(stream) {
		return reply, net.ErrClosed
	}
	stream.SetReadBuffer(setupBuffer)
	stream.SetTOS(attr.TOS)
	if c.e.config.LongFPDUs && request.Revision != mpa.Revision1 && stream.Offloaded() {
		request.Reserved = longFPDURequest
	}
	_ = stream.SetDeadline(deadline)
	if err = writeFrame(stream, request); err == nil {
		onSent()
		in := &countingReader{Reader: stream}
		reply, err = readFrame(in, true)
		if in.n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
			err = fmt.Errorf("%w: %w", errUnanswered, err)
		}
	}
	if err != nil {
		stream.Abort()
		return reply, err
	}
	_ = stream.SetDeadline(time.Time{})
	return reply, nil
}

// countingReader counts the bytes read.
type countingReader struct {
	io.Reader
	n int
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}

// terminateSetup ends a connection that the peer has accepted, but that has no QP. It sends a
// Terminate message with the reason (RFC 6581 §9.1–§9.3).
func (c *conn) terminateSetup(err error) {
	cause, ok := rdmap.CauseOf(err)
	if !ok {
		cause, _ = rdmap.CauseOf(mpa.ErrLocalCatastrophic)
	}
	var segment [ddp.UntaggedLen + rdmap.TerminateLen]byte
	header := ddp.Untagged{Last: true, RsvdULP: rdmap.Terminate.Control(), QN: rdmap.QueueTerminate, MSN: 1}
	header.Encode(segment[:])
	message := rdmap.TerminateHeader{Cause: cause}
	message.Encode(segment[ddp.UntaggedLen:])
	fpdu := make([]byte, c.framer.Size(len(segment)))
	c.framer.Begin(fpdu, len(segment))
	c.framer.Add(segment[:])
	c.framer.End()
	_ = c.stream.SetWriteDeadline(c.e.timers.Clock().Now().Add(lingerTimeout))
	if _, err := c.stream.Write(fpdu); err != nil {
		c.stream.Abort()
		return
	}
	c.e.Counters.TerminatesSent.Add(1)
	_ = c.stream.Close()
}

// setStream sets the connection's stream, unless the connection was closed meanwhile.
func (c *conn) setStream(stream stack.Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		stream.Abort()
		return false
	}
	c.stream = stream
	return true
}

// handleReply handles the peer's reply.
func (c *conn) handleReply(request, reply *mpa.Frame, p *rdmacm.ConnParam) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		return nil
	}
	// The application gets the peer's IRD and ORD; those of the QP depend on both sides.
	theirs := rdmacm.ConnParam{
		PrivateData: reply.PrivateData, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
	}
	c.ird, c.ord, c.ordLimit = p.ResponderResources, p.InitiatorDepth, MaxReads
	enhanced := &reply.Enhanced
	negotiated := reply.HasEnhanced && request.HasEnhanced
	if negotiated && enhanced.ORD != mpa.NoNegotiation {
		theirs.ResponderResources = uint8(min(enhanced.ORD, 0xff))
	}
	if negotiated && enhanced.IRD != mpa.NoNegotiation {
		theirs.InitiatorDepth = uint8(min(enhanced.IRD, 0xff))
		c.ordLimit = uint8(min(uint16(c.ordLimit), enhanced.IRD))
	}
	c.revision = reply.Revision
	if reply.Rejected {
		c.state = over
		c.traceFailed(errRejected)
		c.stream.Abort()
		c.emit(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: -int(syscall.ECONNREFUSED), Param: theirs})
		return nil
	}
	longFPDUs := request.Reserved&longFPDURequest != 0 && reply.Reserved&longFPDUReply != 0
	if err := c.startMPA(reply.Markers, request.Markers, request.CRC || reply.CRC, longFPDUs); err != nil {
		return err
	}
	if negotiated {
		if err := c.negotiate(&request.Enhanced, enhanced); err != nil {
			return err
		}
	}
	c.state = responded
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.ConnectResponse, Param: theirs})
	return nil
}

// negotiate determines IRD, ORD and the ready-to-receive message from the request and the reply
// (RFC 6581 §9.1, §9.2).
func (c *conn) negotiate(ours, theirs *mpa.Enhanced) error {
	c.ord = min(c.ord, c.ordLimit)
	if want := theirs.ORD; want != mpa.NoNegotiation && want > uint16(c.ird) {
		if want > MaxReads {
			return mpa.ErrInsufficientIRD
		}
		c.ird = uint8(want) // more than the request offered, but the device supports it
	}
	switch {
	case !ours.PeerToPeer || !theirs.PeerToPeer:
	case theirs.RDMAWrite:
		c.rtr = rtrWrite
	case theirs.RDMARead:
		c.rtr = rtrRead
	case theirs.ZeroLengthSend:
		c.rtr = rtrEmpty
	default:
		return mpa.ErrNoMatchingRTR
	}
	return nil
}

// failed reports that the set-up failed, with the events and status of the kernel's rdma_cm for
// iWARP.
func (c *conn) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		return
	}
	c.state = over
	c.traceFailed(err)
	e := &rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.EPROTO)}
	var errno syscall.Errno
	var operation *net.OpError
	switch {
	case isTimeout(err), errors.Is(err, syscall.ETIMEDOUT):
		e.Type, e.Status = rdmacm.Unreachable, -int(syscall.ETIMEDOUT)
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Type, e.Status = rdmacm.Rejected, -int(syscall.ECONNREFUSED)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		e.Type, e.Status = rdmacm.Rejected, -int(syscall.ECONNRESET)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		e.Type, e.Status = rdmacm.Unreachable, -int(syscall.EHOSTUNREACH)
	case errors.As(err, &errno):
		e.Status = -int(errno)
	// A read or write failed without an errno: the connection is lost.
	case errors.As(err, &operation):
		e.Type, e.Status = rdmacm.Rejected, -int(syscall.ECONNRESET)
	}
	c.emit(e)
}

// isTimeout reports whether an error is a timeout, of a context or of a stream.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
