package nfs

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"

	"github.com/softrnic/softrnic/cmd/internal/accept"
)

const (
	maxStreams   = 64 // at a time; the oldest ends for a new one, as calls are short
	maxShortCall = 8 << 10
	streamIdle   = time.Minute // a connection without calls is closed
)

// serveTCP serves short RPC calls over TCP until ctx ends: Linux mounts over RDMA, but asks for the
// export's file handle, and for ports, over TCP.
func serveTCP(ctx context.Context, l net.Listener, gate *accept.Gate, log *slog.Logger, h rpcrdma.Handler) error {
	return accept.Serve(ctx, l, gate, log, func(ctx context.Context, conn net.Conn, _ func()) { serveStream(ctx, conn, h) })
}

// serveStream serves the calls of a connection.
func serveStream(ctx context.Context, conn net.Conn, h rpcrdma.Handler) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	local, _ := netip.ParseAddrPort(conn.LocalAddr().String())
	remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	in := &recordReader{r: bufio.NewReader(conn), limit: maxShortCall}
	for {
		_ = conn.SetDeadline(time.Now().Add(streamIdle))
		call, err := in.read()
		if err != nil {
			return
		}
		reply := h.HandleRPC(ctx, &rpcrdma.Call{Message: call, LocalAddr: local, PeerAddr: remote})
		if reply == nil {
			return
		}
		if _, err := conn.Write(append(recordMark(reply), reply...)); err != nil {
			return
		}
	}
}

// onlyMount serves MOUNT and nothing else.
func onlyMount(h rpcrdma.Handler) rpcrdma.Handler {
	return rpcrdma.HandlerFunc(func(ctx context.Context, r *rpcrdma.Call) []byte {
		if c, ok := parseCall(r.Message); ok && c.rpcVersion == 2 && c.program == programNFS {
			return c.accepted(acceptProgUnavail)
		}
		return h.HandleRPC(ctx, r)
	})
}
