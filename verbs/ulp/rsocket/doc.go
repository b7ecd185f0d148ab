// Package rsocket provides stream and datagram sockets over RDMA, with the wire protocol of
// rsocket(7) of librdmacm. A [Conn] is a net.Conn, and a [Listener] a net.Listener. The peer may be
// a C program that uses rsockets over rxe, siw or hardware.
//
//	l, err := rsocket.Listen(dev, ":7471", nil)
//	err = http.Serve(l, handler)
//
//	conn, err := rsocket.Dial(ctx, dev, "10.0.0.2:7471", nil)
//	_, err = conn.Write(…)
//
// RDMA WRITEs with immediate data place bytes in the peer's receive buffer. Over iWARP, each is
// replaced by an RDMA WRITE and a SEND, because iWARP had no immediate data when rsockets were
// designed. PROTOCOL.md has a summary of the protocol. A Conn has a QP, a CQ, a protection domain,
// two buffers and one goroutine. Its memory is registered in its own protection domain, so that the
// keys of one peer give no access to the memory of another.
//
// The versions, lengths, credits and operations that the peer sends are checked. A protocol
// violation ends the connection with EPROTO on this side. The memory that a peer can occupy is
// limited to the buffers.
//
// If the last wait of a reader or writer was short, it polls: it receives packets and takes
// completions itself. Otherwise the goroutine does so.
//
// A [PacketConn] is a datagram socket over a UD QP.
package rsocket
