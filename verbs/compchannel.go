package verbs

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// CompChannel carries the completion events of any number of CQs (ibv_comp_channel).
type CompChannel struct {
	dev *Device

	// guarded by dev.mu
	cqs  int
	dead bool

	notifier *wakeup.Notifier
	hooked   atomic.Bool // onEvent is not nil
	owes     atomic.Bool // untold is not 0

	mu         sync.Mutex
	acked      sync.Cond
	head, tail *CQ // list of the CQs that have pending events
	onEvent    func(n int)
	untold     int       // how the number of events has changed since onEvent was called
	telling    bool      // a call of onEvent is running
	told       uint64    // how many have returned
	returned   sync.Cond // one has returned
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
	c.acked.L, c.returned.L = &c.mu, &c.mu
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

// errNoCompEvent is what TryGetEvent returns most often.
var errNoCompEvent error = &Error{Op: "get completion event", Err: ErrAgain}

// TryGetEvent is GetEvent that does not wait: if there is no event, the error is ErrAgain. It is what ibv_get_cq_event is on
// a channel whose descriptor has O_NONBLOCK.
func (c *CompChannel) TryGetEvent() (*CQ, error) {
	cq, _, _ := c.take()
	switch {
	case cq != nil:
		return cq, nil
	case c.notifier.Closed():
		return nil, Errorf(ErrDestroyed, "get completion event", "the completion channel is destroyed")
	}
	return nil, errNoCompEvent
}

// OnEvent has f called whenever events are added to the channel, with n = their number. It is for programs that wait for
// something else than GetEvent, such as a descriptor that f writes to, and that take events with TryGetEvent. If n is negative,
// −n events were dropped, because their CQ was destroyed. So the sum of all n, less the events that were taken, is the number
// of events in the channel, as in the counter of an eventfd of type EFD_SEMAPHORE. If there are events already, OnEvent
// itself calls f, with their number. A nil f ends the calls.
//
// f is called on the goroutine that adds the completion, which may be the device's, one that posts or one that polls, before
// that goes on, or on one that calls f already. No QP, CQ or other object is locked: f may call methods of this package and of rdmacm, but
// for OnEvent of the same channel. As it may have the device's goroutine, f must neither wait for something that comes over the network, nor
// close the device. Calls for one channel are made one at a time, in the order of the changes; when
// OnEvent returns, the function of an earlier OnEvent is not running and will not be called.
//
// As a program that waits elsewhere does not tell the device when it sleeps, RequestNotify then does: the device makes
// progress by itself from RequestNotify on (see [Wait]). CQ.Arm does not.
func (c *CompChannel) OnEvent(f func(n int)) {
	c.mu.Lock()
	c.onEvent = f
	c.hooked.Store(f != nil)
	c.untold = 0
	pending := 0
	for cq := c.head; cq != nil; cq = cq.next {
		pending += cq.pending
	}
	c.owe(pending)
	for told := c.told; c.telling && c.told == told; {
		c.returned.Wait()
	}
	c.mu.Unlock()
	c.tell()
}

// owe records a change of the number of events, which tell passes on. mu is held.
func (c *CompChannel) owe(n int) {
	if c.onEvent != nil {
		c.untold += n
	}
	c.owes.Store(c.untold != 0)
}

// tell calls the function of OnEvent with the changes that it does not know of. No lock is held of a QP or CQ. If another goroutine
// calls the function, or this one does, further up, that goes on with these changes.
func (c *CompChannel) tell() {
	if !c.owes.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.telling {
		return
	}
	c.telling = true
	for c.untold != 0 && c.onEvent != nil {
		n, f := c.untold, c.onEvent
		c.untold = 0
		c.owes.Store(false)
		c.mu.Unlock()
		f(n)
		c.mu.Lock()
		c.told++
		c.returned.Broadcast()
	}
	c.telling = false
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

// notify adds an event of a CQ. When the caller has unlocked the CQ, and the QP, tell is to be called.
func (c *CompChannel) notify(cq *CQ) {
	c.mu.Lock()
	if cq.pending++; cq.pending == 1 {
		c.append(cq)
	}
	c.owe(1)
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
	c.dropEvents(cq)
	c.tell()
	c.mu.Lock()
	defer c.mu.Unlock()
	for cq.unacked > 0 {
		c.acked.Wait()
	}
}

// dropEvents drops a CQ's pending events.
func (c *CompChannel) dropEvents(cq *CQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq.pending > 0 {
		c.owe(-cq.pending)
		cq.pending = 0
		var prev *CQ
		for at := c.head; at != cq; at = at.next {
			prev = at
		}
		c.unlink(prev, cq)
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
