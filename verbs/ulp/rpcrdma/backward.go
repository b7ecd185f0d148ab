package rpcrdma

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// Conn is the connection of a client to a listener. Calls in the backward direction, from the
// server to the client, are messages without chunks (RFC 8167 §5). NFS 4.1 has such calls.
type Conn struct {
	s     *server
	ready chan struct{} // closed when the client has been accepted
}

// LocalAddr and PeerAddr return the addresses of the connection.
func (c *Conn) LocalAddr() netip.AddrPort { return c.s.local }
func (c *Conn) PeerAddr() netip.AddrPort  { return c.s.peer }

// Call sends an RPC call message in the backward direction, from the XID on, and waits for the
// reply. It waits while the client grants no credit. XIDs are independent of those of the client.
// If ctx ends first, the call still uses a credit until its reply comes.
//
// A call that is longer than a SEND is an error that is verbs.ErrInvalid.
func (c *Conn) Call(ctx context.Context, message []byte) (reply []byte, err error) {
	const op = "call in the backward direction"
	s := c.s
	if err := wakeup.ReceiveContext(ctx, s.l.clock, c.ready); err != nil {
		return nil, &verbs.Error{Op: op, Err: err}
	}
	h := &Header{Version: Version, Credits: uint32(s.cfg.BackwardCredits), Type: Msg}
	if longest := s.sendMax - h.Len(); len(message) < 4 || len(message) > longest || s.cfg.BackwardCredits == 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "a message of %d bytes: must be 4 to %d, and %d credits allow such calls",
			len(message), longest, s.cfg.BackwardCredits)
	}
	h.XID = binary.BigEndian.Uint32(message)
	p := &pending{message: message, done: make(chan struct{})}
	err = s.backward.begin(ctx, h.XID, p)
	if err == nil {
		err = s.transmit(&outgoing{header: h, message: message, inline: []part{{n: len(message)}}, done: func() {}})
	}
	if err == nil {
		if err = wakeup.ReceiveContext(ctx, s.clock, p.done); err == nil {
			reply, err = p.result, p.err
		}
	}
	if err != nil {
		return nil, &verbs.Error{Op: op, Err: err}
	}
	return reply, nil
}

// Close ends the connection. It does not wait for its calls.
func (c *Conn) Close() { c.s.cancel() }

const (
	rpcCall  = 0
	rpcReply = 1
)

// direction returns the type of an RPC message that has no chunks: rpcCall or rpcReply. ok is false
// for other messages.
func direction(h *Header, inline []byte) (kind uint32, ok bool) {
	if h.Type != Msg || len(inline) < 8 {
		return 0, false
	}
	return binary.BigEndian.Uint32(inline[4:]), len(h.Read)+len(h.Write) == 0 && h.Reply == nil
}

// backwardCall answers a call of the server, whose receive buffer is posted again before the reply.
// So the receive requests bound these calls.
func (c *Client) backwardCall(ctx context.Context, buffer int, h *Header, inline []byte) {
	reply := c.cfg.Backward.HandleRPC(ctx, &Call{Message: inline, Room: c.sendMax - h.Len(), LocalAddr: c.LocalAddr(), PeerAddr: c.PeerAddr()})
	repost := func() {
		if err := c.postReceive(buffer); err != nil {
			c.fail(err)
		}
	}
	granted := &Header{XID: h.XID, Version: Version, Credits: uint32(c.cfg.BackwardCredits), Type: Msg}
	if reply == nil || granted.Len()+len(reply) > c.sendMax {
		repost()
		return
	}
	_ = c.transmit(&outgoing{header: granted, message: reply, inline: []part{{n: len(reply)}}, ready: repost, done: func() {}})
}
