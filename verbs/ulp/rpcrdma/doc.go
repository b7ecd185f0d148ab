// Package rpcrdma carries ONC RPC over RDMA: RPC-over-RDMA version 1 of RFC 8166, with the private
// data of RFC 8797. NFS over RDMA uses it (RFC 8267). The peer may be Linux's NFS client or server.
//
//	l, err := rpcrdma.Listen(dev, ":20049", &rpcrdma.Config{Binding: rpcrdma.NFS})
//	err = l.Serve(handler)
//
//	c, err := rpcrdma.Dial(ctx, dev, "10.0.0.2:20049", &rpcrdma.Config{Binding: rpcrdma.NFS})
//	reply, err := c.Call(ctx, call)
//
// The transport does not interpret RPC messages. A [Handler] gets a call and returns the reply,
// both as XDR from the XID on, without record marks. Any RPC program can be served in this way.
//
// Short messages are SENDs. The client describes its memory for longer ones in chunks: the server
// fetches data of a call by RDMA READ, and places data of a reply by RDMA WRITE. The data that may
// move on its own depends on the RPC program, and a [Binding] finds it. [NFS] is the binding of
// NFS. A message that is still too long moves as a whole.
//
// A server may also call its clients: [Listener.ServeConns] gives it their connections, and
// [Config.Backward] is the client's handler.
//
// On a simulated network ([verbs.Clock]), calls, handlers and closing wait in its time.
//
// The server registers no memory for remote access. Each connection has a protection domain of its
// own. The memory of a connection is bounded by [Config]. A peer that violates the protocol gets an
// error message or loses its connection. A peer that sends more calls than it has credits for finds
// no receive request, as with other RDMA programs.
package rpcrdma
