package rsocket

import (
	"net"
	"os"
	"syscall"
)

// protocolError is the sentinel for protocol violations of the peer.
type protocolError struct{}

func (protocolError) Error() string { return "protocol error" }
func (protocolError) Unwrap() error { return syscall.EPROTO }

var errProtocol error = protocolError{}

// socketAddr is the address of a socket.
type socketAddr struct{ text string }

// Network returns "rsocket".
func (a socketAddr) Network() string { return "rsocket" }

// String returns address and port, as netip.AddrPort does.
func (a socketAddr) String() string { return a.text }

// opError returns an error of a Conn's method with its addresses, as package net does.
func (c *Conn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "rsocket", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

var errTimeout = os.ErrDeadlineExceeded
