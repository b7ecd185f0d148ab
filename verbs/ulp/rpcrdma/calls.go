package rpcrdma

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// calls are the calls of one direction that have no reply yet. The peer's credits bound them.
type calls struct {
	clock verbs.Clock

	mu      sync.Mutex
	granted sync.Cond // credits, or the connection has ended
	credits int       // granted by the peer
	most    int       // that it may grant
	pending map[uint32]*pending
	err     error // the reason for the end of the connection
}

// pending is a call without a reply.
type pending struct {
	message []byte
	write   *region // of the Write chunk, or nil
	reply   *region // of the Reply chunk, or nil
	done    chan struct{}
	result  []byte
	err     error
}

func newCalls(clock verbs.Clock, most int) *calls {
	c := &calls{clock: clock, credits: 1, most: most, pending: map[uint32]*pending{}} // the first credit needs no grant
	c.granted.L = &c.mu
	return c
}

// begin waits for a credit and registers a call.
func (c *calls) begin(ctx context.Context, xid uint32, p *pending) error {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.granted.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock.Virtual() { // otherwise the function would be allocated for nothing
		wakeup.Await(c.clock, &c.granted, func() bool { return c.mayBegin(ctx) })
	}
	for !c.mayBegin(ctx) {
		c.granted.Wait()
	}
	switch _, taken := c.pending[xid]; {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.err != nil:
		return c.err
	case taken:
		return fmt.Errorf("a call with XID %#x is outstanding", xid)
	}
	c.pending[xid] = p
	return nil
}

// mayBegin reports whether there is a credit, or none to wait for. mu is held.
func (c *calls) mayBegin(ctx context.Context) bool {
	return len(c.pending) < c.credits || ctx.Err() != nil || c.err != nil
}

// answered ends a call with the peer's message for its XID, and takes the credits. The error is
// that of a message that ends the connection.
func (c *calls) answered(b Binding, h *Header, inline []byte) error {
	c.mu.Lock()
	p := c.pending[h.XID]
	delete(c.pending, h.XID)
	c.credits = min(max(1, int(min(h.Credits, maxCredits))), c.most)
	c.granted.Broadcast()
	c.mu.Unlock()
	if p == nil {
		return nil // a reply to no call, which is dropped
	}
	p.result, p.err = p.receive(b, h, inline)
	close(p.done)
	if p.err == nil || errors.As(p.err, new(*RemoteError)) {
		return nil
	}
	return p.err
}

// end fails the calls without a reply, and later ones.
func (c *calls) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for xid, p := range c.pending {
		delete(c.pending, xid)
		p.err = err
		close(p.done)
	}
	c.granted.Broadcast()
}
