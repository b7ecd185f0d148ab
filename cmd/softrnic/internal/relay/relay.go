// Package relay passes the bytes of a connection on to another.
package relay

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rsocket"
)

// Relay passes on what comes from either of two connections to the other, until both halves have ended. If one fails, or ctx ends,
// both get an error in place of an end of the stream: what was passed on must not look whole. The caller closes them.
func (c *Counters) Relay(ctx context.Context, near, far net.Conn) error {
	defer context.AfterFunc(ctx, func() { Abort(near); Abort(far) })()
	c.Open.Add(1)
	defer c.Open.Add(-1)
	ends := make(chan error, 2)
	go func() { ends <- pump(far, near, &c.ToBytes) }()
	go func() { ends <- pump(near, far, &c.FromBytes) }()
	err := <-ends
	if err != nil {
		Abort(near)
		Abort(far)
		<-ends
		return err
	}
	if err = <-ends; err != nil {
		Abort(near)
		Abort(far)
	}
	return err
}

// Abort ends a connection so that its peer gets an error.
func Abort(c net.Conn) {
	switch c := c.(type) {
	case *tls.Conn:
		Abort(c.NetConn())
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	case *rsocket.Conn:
		_ = c.QP().Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
		_ = c.Close()
	}
}
