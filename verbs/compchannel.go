package verbs

import (
	"context"
	"sync"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// CompChannel carries the completion events of any number of CQs (ibv_comp_channel).
type CompChannel struct {
	dev *Device

	// guarded by dev.mu
	cqs  int
	dead bool

	notifier *wakeup.Notifier

	mu         sync.Mutex
	acked      sync.Cond
	head, tail *CQ // list of the CQs that have pending events
}

// CreateCompChannel creates a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	const op = "create completion channel"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	d.channels++
	c := &CompChannel{dev: d, notifier: wakeup.New()}
	c.acked.L = &c.mu
	return c, nil
}

// GetEvent waits for the next event and returns its CQ. Each event must be acknowledged with CQ.AckEvents. The error is
// the context's, or ErrDestroyed.
func (c *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	const op = "get completion event"
	cq, err := wakeup.Wait(ctx, c.notifier, c.take)
	switch {
	case err == wakeup.ErrClosed:
		return nil, Errorf(ErrDestroyed, op, "the completion channel is destroyed")
	case err != nil:
		return nil, wrap(op, err)
	}
	return cq, nil
}

// Destroy destroys the channel; calls of GetEvent return. It fails with ErrBusy while CQs use the channel.
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
	c.dev.channels--
	c.notifier.Close()
	return nil
}

// notify adds an event of a CQ.
func (c *CompChannel) notify(cq *CQ) {
	c.mu.Lock()
	if cq.pending++; cq.pending == 1 {
		c.append(cq)
	}
	c.mu.Unlock()
	c.notifier.Notify()
}

// take removes the oldest event and returns its CQ. If there is none the caller is about to sleep, and take calls
// EndProgress of the provider.
func (c *CompChannel) take() (cq *CQ, ok, more bool) {
	if cq, more = c.pop(); cq == nil {
		c.dev.prov.EndProgress()
	}
	return cq, cq != nil, more
}

// pop removes the oldest event and returns its CQ, nil if there is none. more reports whether other events are left.
func (c *CompChannel) pop() (cq *CQ, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cq = c.head
	if cq == nil {
		return nil, false
	}
	c.unlink(nil, cq)
	cq.unacked++
	if cq.pending--; cq.pending > 0 {
		c.append(cq)
	}
	return cq, c.head != nil
}

// removeCQ drops a CQ's pending events and waits until the others are acknowledged.
func (c *CompChannel) removeCQ(cq *CQ) {
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
