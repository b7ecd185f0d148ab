// Package rsocket is stream and datagram sockets over RDMA, with the wire protocol of rsocket(7) of librdmacm: a [Conn] is a net.Conn, a
// [Listener] a net.Listener, and the peer may be a C program that uses rsockets over rxe, siw or hardware.
//
//	l, err := rsocket.Listen(dev, ":7471", nil)            conn, err := rsocket.Dial(ctx, dev, "10.0.0.2:7471", nil)
//	err = http.Serve(l, handler)                           _, err = conn.Write(…)
//
// Bytes are placed in the peer's receive buffer by RDMA WRITE with immediate data, or over iWARP, which had none when rsockets
// were made, by an RDMA WRITE and a SEND. PROTOCOL.md has the protocol in short. A Conn has a QP, a CQ, a protection domain, its two
// buffers and one goroutine; its memory is registered in the protection domain of its own, so that the keys that one peer
// knows give no access to what belongs to another.
//
// What the peer says is checked: versions, lengths, credits, operations. A peer that breaks the protocol ends its connection, with
// EPROTO on this side, and the most memory that it can make this side use is that of the buffers.
//
// Who reads or writes, and has waited for short times, polls: it receives packets and takes completions itself. Else the goroutine does.
//
// A [PacketConn] is a datagram socket over a UD QP.
package rsocket
