package rpcrdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Client is a connection to a server. Several goroutines may call its methods.
type Client struct {
	*conn
	cancel     context.CancelFunc
	goroutines wakeup.Group
	closing    wakeup.Once
	closeErr   error
	calls      *calls
}

// region is memory that the server may access during a call.
type region struct {
	mr *verbs.MR
	b  []byte
}

// RemoteError is the error of a call for which the server has sent an error message.
type RemoteError struct {
	Code      ErrCode
	Low, High uint32 // with ErrVers: the versions that the server supports
}

func (e *RemoteError) Error() string {
	if e.Code == ErrVers {
		return fmt.Sprintf("the server answers %v: it supports versions %d to %d", e.Code, e.Low, e.High)
	}
	return fmt.Sprintf("the server answers %v", e.Code)
}

// Dial connects to a server on "host:port", where either may be a name.
func Dial(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (*Client, error) {
	full, err := cfg.check()
	if err != nil {
		return nil, err
	}
	c := &Client{calls: newCalls(dev.Clock(), full.Credits)}
	if c.conn, err = newConn(dev, full); err != nil {
		return nil, err
	}
	cm, err := rdmacm.Dial(ctx, dev, addr, c.cmConfig(private{send: full.Inline, recv: full.Inline}))
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	c.start(cm, parsePrivate(cm.Peer().PrivateData))
	running, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.goroutines.Go(c.clock, func() {
		c.run(running, func(buffer, length int, _ *verbs.WC) { c.received(running, buffer, length) })
		cancel() // for calls of the server
		c.calls.end(c.reason())
	})
	return c, nil
}

// LocalAddr returns the local address and port.
func (c *Client) LocalAddr() netip.AddrPort { return c.cm.LocalAddr() }

// PeerAddr returns the server's address and port.
func (c *Client) PeerAddr() netip.AddrPort { return c.cm.PeerAddr() }

// Call sends an RPC call message, from the XID on, and waits for the reply. Calls that are
// outstanding at the same time have different XIDs. Call waits while the server grants no credit.
//
// If ctx ends first, the connection ends, because the server may still access the memory of the
// call. A *RemoteError is the error of this call alone.
func (c *Client) Call(ctx context.Context, message []byte) (reply []byte, err error) {
	const op = "call"
	if len(message) < 4 || len(message) > c.cfg.MaxMessage {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "a message of %d bytes: must be 4 to %d", len(message), c.cfg.MaxMessage)
	}
	p := &pending{message: message, done: make(chan struct{})}
	xid := binary.BigEndian.Uint32(message)
	if err := c.calls.begin(ctx, xid, p); err != nil {
		return nil, &verbs.Error{Op: op, Err: err}
	}
	sent := make(chan struct{})
	call, err := c.sendCall(xid, p, func() { close(sent) })
	if err == nil {
		if err = wakeup.ReceiveContext(ctx, c.clock, p.done); err == nil {
			err = p.err
		} else {
			c.fail(err)
			wakeup.Receive(c.clock, p.done)
		}
		wakeup.Receive(c.clock, sent)
	} else {
		c.fail(err)
		wakeup.Receive(c.clock, p.done)
	}
	if call != nil {
		err = errors.Join(err, call.close())
	}
	for _, r := range []*region{p.write, p.reply} {
		if r != nil {
			err = errors.Join(err, r.close())
		}
	}
	if err != nil {
		return nil, &verbs.Error{Op: op, Err: err}
	}
	return p.result, nil
}

// sendCall sends a call. It returns the memory of the call's Read chunk, or nil. sent is called
// when the SEND has completed.
func (c *Client) sendCall(xid uint32, p *pending, sent func()) (read *region, err error) {
	h := &Header{XID: xid, Version: Version, Credits: uint32(c.cfg.Credits), Type: Msg}
	if err := c.offer(h, p); err != nil {
		return nil, err
	}
	inline := []part{{n: len(p.message)}}
	n := len(p.message)
	if h.Len()+n > c.sendMax {
		item := c.longest(p.message)
		if rest := n - (item.end(n) - item.Offset); item.Length > 0 && h.Len()+24+rest <= c.sendMax {
			read, err = c.register(p.message[item.Offset:item.Offset+item.Length], verbs.AccessRemoteRead)
			if err != nil {
				return nil, err
			}
			h.Read = []ReadSegment{{uint32(item.Offset), read.segment()}}
			inline = without(len(p.message), []Item{item})
		} else {
			if read, err = c.register(p.message, verbs.AccessRemoteRead); err != nil {
				return nil, err
			}
			h.Type, h.Read = NoMsg, []ReadSegment{{0, read.segment()}}
			inline = nil
		}
	}
	return read, c.transmit(&outgoing{header: h, message: p.message, inline: inline, done: sent})
}

// longest returns the longest data item of a call.
func (c *Client) longest(message []byte) (longest Item) {
	if c.cfg.Binding != nil {
		for _, item := range c.cfg.Binding.CallItems(message) {
			if item.Length > longest.Length {
				longest = item
			}
		}
	}
	return longest
}

// offer registers memory for the reply to a call, if the reply may be longer than a SEND: a Write
// chunk if it has a data item, otherwise a Reply chunk.
func (c *Client) offer(h *Header, p *pending) (err error) {
	item, rest := 0, c.cfg.MaxMessage
	if c.cfg.Binding != nil {
		item, rest = c.cfg.Binding.ReplySize(p.message)
	}
	rest = min(rest, c.cfg.MaxMessage)
	item = min(item, c.cfg.MaxMessage)
	if h.Len()+item+pad(item)+rest <= c.recvMax {
		return nil
	}
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if item > 0 {
		if p.write, err = c.register(make([]byte, item), access); err != nil {
			return err
		}
		h.Write = [][]Segment{{p.write.segment()}}
		return nil
	}
	if p.reply, err = c.register(make([]byte, rest), access); err != nil {
		return err
	}
	h.Reply = []Segment{p.reply.segment()}
	return nil
}

func (c *Client) register(b []byte, access verbs.Access) (*region, error) {
	mr, err := c.pd.RegMR(b, access)
	return &region{mr, b}, err
}

func (r *region) segment() Segment {
	return Segment{Handle: r.mr.RKey(), Length: uint32(len(r.b)), Offset: r.mr.Addr()}
}

func (r *region) close() error {
	if r.mr == nil {
		return nil
	}
	err := r.mr.Close()
	r.mr = nil
	return err
}

// received handles a message of the server.
func (c *Client) received(ctx context.Context, buffer, length int) {
	b := c.recv.bytes(buffer)[:length]
	h, n, err := ParseHeader(b)
	if kind, ok := direction(h, b[n:]); err == nil && ok && kind == rpcCall && c.cfg.Backward != nil {
		c.goroutines.Go(c.clock, func() { c.backwardCall(ctx, buffer, h, b[n:]) })
		return
	}
	b = bytes.Clone(b)
	// Before another call is sent, whose reply needs it.
	if failed := c.postReceive(buffer); failed != nil {
		err = failed
	}
	if err == nil {
		err = c.calls.answered(c.cfg.Binding, h, b[n:])
	}
	if err != nil {
		c.fail(err)
	}
}

const errReply = headerError("its chunks are not those of the call")

// receive returns the reply of a message to the call.
func (p *pending) receive(b Binding, h *Header, inline []byte) ([]byte, error) {
	switch {
	case h.Type == Error:
		return nil, &RemoteError{h.Err, h.Low, h.High}
	case h.Type == NoMsg:
		n := length(h.Reply)
		if p.reply == nil || n > uint64(len(p.reply.b)) || len(inline) > 0 {
			return nil, errReply
		}
		inline = p.reply.b[:n]
	case h.Type != Msg:
		return nil, errMsgType
	}
	reply := inline
	if h.Type == NoMsg {
		reply = bytes.Clone(inline) // the server can still write there
	}
	written := uint64(0)
	for _, chunk := range h.Write {
		written += length(chunk)
	}
	switch {
	case len(h.Read) > 0 || written > 0 && p.write == nil || written > 0 && written > uint64(len(p.write.b)):
		return nil, errReply
	case written == 0:
		return reply, nil
	}
	return insert(b, p.message, reply, p.write.b[:written])
}

// insert inserts the data of the Write chunk into a reply. The binding finds the place of an item
// from what is before it, so the data may at first be at the end.
func insert(b Binding, call, reply, data []byte) ([]byte, error) {
	n := len(reply)
	reply = append(append(reply, data...), make([]byte, pad(len(data)))...)
	items := b.ReplyItems(call, reply)
	if len(items) == 0 || items[0].Length != len(data) || items[0].Offset > n {
		return nil, errReply
	}
	at := items[0].Offset
	rest := append([]byte(nil), reply[at:n]...)
	reply = append(append(reply[:at], data...), make([]byte, pad(len(data)))...)
	return append(reply, rest...), nil
}

// Close ends the connection. Calls without a reply fail.
func (c *Client) Close() error {
	c.closing.Do(c.clock, func() {
		c.cancel()
		c.goroutines.Wait(c.clock)
		c.closeErr = c.close()
	})
	return c.closeErr
}
