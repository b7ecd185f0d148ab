package iwarp

// Set-up, initiating side: TCP's connection, MPA's request, the peer's reply. (RFC 5044 §7.1, RFC 6581 §4–§9)

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Connect opens a stream and asks for a connection; see rdmacm.Provider.
func (e *Engine) Connect(attr *rdmacm.ConnectAttr, h rdmacm.Handler) (rdmacm.ProviderConn, error) {
	if attr.QPType != verbs.RC {
		return nil, verbs.Errorf(verbs.ErrNotSupported, "connect", "QP type %v over iWARP", attr.QPType)
	}
	c := &conn{e: e, h: h, route: attr.Route, initiator: true}
	f, err := e.newRequest(&attr.Param)
	if err != nil {
		return nil, err
	}
	go c.connect(attr, f)
	return c, nil
}

// newRequest is the request frame for what the application asks for.
func (e *Engine) newRequest(p *rdmacm.ConnParam) (*mpa.Frame, error) {
	f := &mpa.Frame{
		Markers: e.config.Markers, CRC: !e.config.NoCRC, Revision: mpa.Revision2,
		Reserved: largeRequest, PrivateData: p.PrivateData,
	}
	if e.config.Revision == mpa.Revision1 {
		f.Revision, f.Reserved = mpa.Revision1, 0
	} else {
		f.HasEnhanced = true
		f.Enhanced = mpa.Enhanced{IRD: uint16(p.ResponderResources), ORD: uint16(p.InitiatorDepth)}
		if !e.config.NoPeerToPeer {
			f.Enhanced.PeerToPeer, f.Enhanced.RDMAWrite, f.Enhanced.RDMARead = true, true, true
		}
	}
	if f.Len() > mpa.MaxFrameLen {
		return nil, verbs.Errorf(verbs.ErrInvalid, "connect", "private data of %d bytes is more than MPA's %d",
			len(p.PrivateData), mpa.MaxFrameLen-(f.Len()-len(p.PrivateData)))
	}
	return f, nil
}

// connect runs the set-up to its end.
func (c *conn) connect(attr *rdmacm.ConnectAttr, request *mpa.Frame) {
	deadline := time.Now().Add(startupTimeout)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	stream, err := c.e.net.DialStream(ctx, netip.AddrPortFrom(attr.Src, attr.LocalPort),
		netip.AddrPortFrom(attr.Dst, attr.RemotePort))
	if err != nil {
		c.failed(err)
		return
	}
	if !c.hold(stream) {
		return
	}
	_ = stream.SetDeadline(deadline)
	if err = writeFrame(stream, request); err == nil {
		var reply mpa.Frame
		if reply, err = readFrame(stream, true); err == nil {
			err = c.replied(request, &reply, &attr.Param)
		}
	}
	_ = stream.SetDeadline(time.Time{})
	if err != nil {
		stream.Abort()
		c.failed(err)
	}
}

// hold takes the stream, unless the connection was closed meanwhile.
func (c *conn) hold(stream stack.Stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		stream.Abort()
		return false
	}
	c.stream = stream
	return true
}

// replied acts on the peer's reply.
func (c *conn) replied(request, reply *mpa.Frame, p *rdmacm.ConnParam) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		return nil
	}
	theirs := rdmacm.ConnParam{PrivateData: reply.PrivateData}
	if reply.Rejected {
		c.state = over
		c.stream.Abort()
		c.emit(&rdmacm.ConnEvent{Type: rdmacm.Rejected, Status: -int(syscall.ECONNREFUSED), Param: theirs})
		return nil
	}
	c.ird, c.ord = int(p.ResponderResources), int(p.InitiatorDepth)
	if enhanced := reply.Enhanced; reply.HasEnhanced && request.HasEnhanced {
		// The peer says what it granted; what it wants beyond our offer is given, as far as we have it.
		c.ord = min(c.ord, int(enhanced.IRD))
		if want := int(enhanced.ORD); want != mpa.NoNegotiation && want > c.ird {
			if want > MaxReads {
				return mpa.ErrInsufficientIRD
			}
			c.ird = want
		}
		switch {
		case !request.Enhanced.PeerToPeer || !enhanced.PeerToPeer:
		case enhanced.RDMAWrite:
			c.ready = readyWrite
		case enhanced.RDMARead:
			c.ready = readyRead
		case enhanced.ZeroLengthSend:
			c.ready = readyEmpty
		default:
			return mpa.ErrNoMatchingRTR
		}
	}
	theirs.ResponderResources, theirs.InitiatorDepth = uint8(min(c.ird, 0xff)), uint8(min(c.ord, 0xff))
	large := request.Reserved&largeRequest != 0 && reply.Reserved&largeReply != 0
	if err := c.begin(reply.Markers, request.Markers, request.CRC || reply.CRC, large); err != nil {
		return err
	}
	c.state = responded
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.ConnectResponse, Param: theirs})
	return nil
}

// failed reports a set-up that came to nothing, as the kernel's rdma_cm does for iWARP.
func (c *conn) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == over {
		return
	}
	c.state = over
	e := &rdmacm.ConnEvent{Type: rdmacm.ConnectError, Status: -int(syscall.EPROTO)}
	var errno syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		e.Type, e.Status = rdmacm.Unreachable, -int(syscall.ETIMEDOUT)
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Type, e.Status = rdmacm.Rejected, -int(syscall.ECONNREFUSED)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		e.Type, e.Status = rdmacm.Rejected, -int(syscall.ECONNRESET)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		e.Type, e.Status = rdmacm.Unreachable, -int(syscall.EHOSTUNREACH)
	case errors.As(err, &errno):
		e.Status = -int(errno)
	}
	c.emit(e)
}
