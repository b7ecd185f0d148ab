package verbs

import (
	"context"
	"sync"
)

// CompChannel carries the completion events of any number of CQs (ibv_comp_channel).
type CompChannel struct {
	dev *Device

	// guarded by dev.mu
	cqs  int
	dead bool

	wake chan struct{} // holds a token if there may be an event and someone to take it
	gone chan struct{} // closed by Destroy

	mu         sync.Mutex
	acked      sync.Cond
	head, tail *CQ // CQs with pending events
}

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	const op = "create completion channel"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	d.chns++
	c := &CompChannel{dev: d, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	c.acked.L = &c.mu
	return c, nil
}

// GetEvent waits for the next event and returns the CQ that it is for, to be acknowledged with CQ.AckEvents. The
// error is the context's, or ErrDestroyed.
func (c *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	const op = "get completion event"
	for {
		if cq := c.take(); cq != nil {
			return cq, nil
		}
		c.dev.prov.EndProgress()
		select {
		case <-c.wake:
		case <-c.gone:
			return nil, Errorf(ErrDestroyed, op, "the completion channel is destroyed")
		case <-ctx.Done():
			return nil, wrap(op, ctx.Err())
		}
	}
}

// Destroy ends the channel. ErrBusy while it has CQs. Calls of GetEvent return.
func (c *CompChannel) Destroy() error {
	const op = "destroy completion channel"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.dead {
		return Errorf(ErrDestroyed, op, "it is destroyed already")
	}
	if c.cqs > 0 {
		return Errorf(ErrBusy, op, "%d CQs use it", c.cqs)
	}
	c.dead = true
	c.dev.chns--
	close(c.gone)
	return nil
}

// notify adds an event.
func (c *CompChannel) notify(cq *CQ) {
	c.mu.Lock()
	if cq.pending++; cq.pending == 1 {
		c.append(cq)
	}
	c.mu.Unlock()
	c.signal()
}

// take takes the oldest event, nil if there is none.
func (c *CompChannel) take() *CQ {
	c.mu.Lock()
	defer c.mu.Unlock()
	cq := c.head
	if cq == nil {
		return nil
	}
	c.unlink(nil, cq)
	cq.unacked++
	if cq.pending--; cq.pending > 0 {
		c.append(cq)
	}
	if c.head != nil {
		c.signal() // one token stood for several events
	}
	return cq
}

// forget drops a CQ's events and waits for those taken.
func (c *CompChannel) forget(cq *CQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq.pending > 0 {
		cq.pending = 0
		var prev *CQ
		for at := c.head; at != cq; at = at.next {
			prev = at
		}
		c.unlink(prev, cq)
	}
	for cq.unacked > 0 {
		c.acked.Wait()
	}
}

func (c *CompChannel) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *CompChannel) append(cq *CQ) {
	if c.tail == nil {
		c.head = cq
	} else {
		c.tail.next = cq
	}
	c.tail = cq
}

func (c *CompChannel) unlink(prev, cq *CQ) {
	if prev == nil {
		c.head = cq.next
	} else {
		prev.next = cq.next
	}
	if c.tail == cq {
		c.tail = prev
	}
	cq.next = nil
}
