// Package relay forwards the bytes of one connection to another.
package relay

import (
	"context"
	"crypto/tls"
	"net"
)

// Relay forwards data between two connections in both directions until both halves have ended. If
// one fails or ctx ends, both get an error instead of an end of the stream. Otherwise a reader
// would take partial data for the whole. The caller closes the connections.
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

// Abort closes a connection so that its peer gets an error. It does not wait for the peer.
func Abort(c net.Conn) {
	switch c := c.(type) {
	case *tls.Conn:
		Abort(c.NetConn())
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	case interface{ Abort() error }: // an rsocket, for example
		_ = c.Abort()
	}
}
