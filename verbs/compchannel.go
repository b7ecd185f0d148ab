package verbs

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// CompChannel delivers the completion events of any number of CQs (ibv_comp_channel).
type CompChannel struct {
	dev *Device

	// protected by dev.mu
	cqs  int
	dead bool

	notifier      *wakeup.Notifier
	hasUnreported atomic.Bool // unreported is not 0

	mu         sync.Mutex
	acked      sync.Cond
	head, tail *CQ // list of the CQs that have pending events
	onEvent    func(n int)
	unreported int       // the change of the number of events since the last call of onEvent
	reporting  bool      // a call of onEvent is running
	reports    uint64    // calls of onEvent that have returned
	returned   sync.Cond // signals that a call has returned
}

// CreateCompChannel creates a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	if err := d.fault("create_comp_channel"); err != nil {
		return nil, err
	}
	const op = "create completion channel"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	d.channels++
	c := &CompChannel{dev: d, notifier: wakeup.New(d.clock)}
	c.acked.L, c.returned.L = &c.mu, &c.mu
	return c, nil
}

// GetEvent waits for the next event and returns its CQ. Each event must be acknowledged with
// CQ.AckEvents. The error is the context's, or ErrClosed.
func (c *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	const op = "get completion event"
	cq, err := wakeup.Wait(ctx, c.notifier, c.take)
	switch {
	case err == wakeup.ErrClosed:
		return nil, Errorf(ErrClosed, op, "the completion channel is closed")
	case err != nil:
		return nil, wrap(op, err)
	}
	return cq, nil
}

// errNoCompEvent is the most frequent error of TryGetEvent, allocated once.
var errNoCompEvent error = &Error{Op: "get completion event", Err: ErrAgain}

// TryGetEvent is like GetEvent but does not wait: without an event, the error is ErrAgain. It is
// for event loops with OnEvent (ibv_get_cq_event on a channel whose descriptor has O_NONBLOCK).
func (c *CompChannel) TryGetEvent() (*CQ, error) {
	cq, _, _ := c.take()
	switch {
	case cq != nil:
		return cq, nil
	case c.notifier.Closed():
		return nil, Errorf(ErrClosed, "get completion event", "the completion channel is closed")
	}
	return nil, errNoCompEvent
}

// OnEvent registers a function f that is called with the number of events added to the channel. It
// is for programs that do not wait in GetEvent but, for example, poll a descriptor that f writes
// to. Such programs take events with TryGetEvent. If n is negative, −n events were dropped because
// their CQ was closed. The sum of all n minus the events taken is therefore the number of events
// in the channel. An eventfd with EFD_SEMAPHORE counts in the same way. If the channel already has
// events, OnEvent itself calls f with their number. A nil f ends the calls.
//
// f is called on the goroutine that adds the completion, before this goroutine continues, or on one
// that is already calling f. It may be the device's goroutine, or one that posts or polls. No QP,
// CQ or other object is locked: f may call methods of this package and of rdmacm, except OnEvent of
// the same channel. f must not wait for data from the network or close the device, because it may
// run on the device's goroutine. Calls for one channel are made one at a time, in the order of the
// changes. When OnEvent returns, the previous function is not running and will not be called.
//
// With OnEvent, the device does not notice when the program sleeps. Before it sleeps, the program
// therefore calls Device.EndProgress, or TryGetEvent, which does the same if there is no event.
func (c *CompChannel) OnEvent(f func(n int)) {
	c.mu.Lock()
	c.onEvent = f
	c.unreported = 0
	pending := 0
	for cq := c.head; cq != nil; cq = cq.next {
		pending += cq.pending
	}
	c.addUnreported(pending)
	c.awaitReport()
	c.report()
}

// awaitReport waits for a running call of the function of OnEvent. It unlocks mu.
func (c *CompChannel) awaitReport() {
	defer c.mu.Unlock() // also if a simulation ends the wait with a panic
	reports := c.reports
	wakeup.Await(c.dev.clock, &c.returned, func() bool { return !c.reporting || c.reports != reports })
}

// addUnreported records a change of the number of events for report. mu is held.
func (c *CompChannel) addUnreported(n int) {
	if c.onEvent != nil {
		c.unreported += n
	}
	c.hasUnreported.Store(c.unreported != 0)
}

// report calls the function of OnEvent with the changes that are not reported yet. No lock of a QP
// or CQ is held. If a call of the function is already running, on this goroutine or another one,
// the running report includes these changes.
func (c *CompChannel) report() {
	if !c.hasUnreported.Load() {
		return
	}
	c.mu.Lock()
	if c.reporting {
		c.mu.Unlock()
		return
	}
	c.reporting = true
	defer func() { // also if f panics
		c.reporting = false
		c.mu.Unlock()
	}()
	for c.unreported != 0 && c.onEvent != nil {
		n, f := c.unreported, c.onEvent
		c.unreported = 0
		c.hasUnreported.Store(false)
		wakeup.Unlocked(&c.mu, func() { f(n) })
		c.reports++
		c.returned.Broadcast()
	}
}

// Close destroys the channel (ibv_destroy_comp_channel); calls of GetEvent return. The error is
// ErrBusy while CQs use the channel, and ErrClosed after the first Close.
func (c *CompChannel) Close() error {
	if err := c.dev.fault("destroy_comp_channel"); err != nil {
		return err
	}
	const op = "close completion channel"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.dead {
		return Errorf(ErrClosed, op, "it is already closed")
	}
	if c.cqs > 0 {
		return Errorf(ErrBusy, op, "%d CQs use it", c.cqs)
	}
	c.dead = true
	c.dev.channels--
	c.notifier.Close()
	return nil
}

// notify adds an event of a CQ. After unlocking the CQ and the QP, the caller must call report.
func (c *CompChannel) notify(cq *CQ) {
	c.mu.Lock()
	if cq.pending++; cq.pending == 1 {
		c.append(cq)
	}
	c.addUnreported(1)
	c.mu.Unlock()
	c.notifier.Notify()
}

// take removes the oldest event and returns its CQ. Without an event the caller is about to sleep,
// and take calls EndProgress of the provider.
func (c *CompChannel) take() (cq *CQ, ok, more bool) {
	if cq, more = c.pop(); cq == nil {
		c.dev.prov.EndProgress()
	}
	return cq, cq != nil, more
}

// pop removes the oldest event and returns its CQ, or nil without an event. more reports whether
// other events are left.
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
	c.report()
	c.mu.Lock()
	defer c.mu.Unlock()
	wakeup.Await(c.dev.clock, &c.acked, func() bool { return cq.unacked == 0 })
}

// dropEvents drops a CQ's pending events.
func (c *CompChannel) dropEvents(cq *CQ) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cq.pending > 0 {
		c.addUnreported(-cq.pending)
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
