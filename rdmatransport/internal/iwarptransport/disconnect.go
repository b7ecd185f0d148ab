package iwarptransport

// The end of a connection, as rdma_cm sees it.

import (
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// disconnected reports the end of an established connection. c.mu is held.
func (c *conn) disconnected() {
	c.state = over
	c.emit(&rdmacm.ConnEvent{Type: rdmacm.Disconnected})
}

// Disconnect implements rdmacm.ProviderConn. Posted requests stay queued until the QP enters ERR.
func (c *conn) Disconnect() error {
	c.mu.Lock()
	state, q := c.state, c.qp
	err := c.expect("disconnect", established)
	c.mu.Unlock()
	if state == over {
		return nil
	}
	if err == nil {
		q.disconnect(c)
	}
	return err
}

// streamEnded is called by the QP's reader at the end of the stream. A peer may accept, send and
// close before the local application calls Establish. The connection has not failed then, so
// DISCONNECTED is reported after ESTABLISHED.
func (c *conn) streamEnded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case established:
		c.disconnected()
	case responded:
		c.ended = true
	case requested:
		c.onPeerClosed()
	default:
		c.state = over
	}
}

// Close implements rdmacm.ProviderConn.
func (c *conn) Close() {
	c.mu.Lock()
	was, stream, q, cancel := c.state, c.stream, c.qp, c.cancel
	c.state, c.closed = over, true
	c.mu.Unlock()
	c.leaveBacklog()
	if cancel != nil {
		cancel()
	}
	switch {
	case stream == nil, was == over: // the stream is already closed
	case was == requested:
		_ = c.sendReject(nil)
	case q != nil:
		q.disconnect(c) // the reader closes it
	case was == responded:
		c.terminateSetup(mpa.ErrLocalCatastrophic)
	default:
		stream.Abort()
	}
}
