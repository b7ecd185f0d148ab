package rdmacm

import (
	"context"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// EventChannel delivers the events of any number of IDs on given devices (rdma_event_channel). The
// events of one ID are in the order in which they occurred.
type EventChannel struct {
	devs   []*verbs.Device
	exempt bool // see CreateExemptChannel

	mu       sync.Mutex // taken after ID locks
	events   []*Event
	ids      int32            // −1 if the channel is closed
	waiting  int32            // calls of GetEvent
	notifier *wakeup.Notifier // wakes these calls; nil without one
	onEvent  wakeup.Hook
}

// CreateEventChannel creates an event channel (rdma_create_event_channel). Its IDs use the given
// devices, and try them in this order to find a route to a peer. It fails with ErrNotSupported if
// the provider of a device does not implement Provider.
func CreateEventChannel(devs ...*verbs.Device) (*EventChannel, error) {
	c, err := createChannel(devs)
	if err == nil {
		err = verbs.InjectedFault("rdma_create_event_channel", devs...)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func createChannel(devs []*verbs.Device) (*EventChannel, error) {
	const op = "create event channel"
	if len(devs) == 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "no device is given")
	}
	for _, d := range devs {
		if d == nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "a device is nil")
		}
		if _, ok := d.Provider().(Provider); !ok {
			return nil, verbs.Errorf(verbs.ErrNotSupported, op, "the provider of %s does not support rdma_cm", d.Name())
		}
	}
	return &EventChannel{devs: slices.Clone(devs)}, nil
}

// provider returns the provider of d, whose type CreateEventChannel has checked.
func provider(d *verbs.Device) Provider { return d.Provider().(Provider) }

// clock returns the clock of waits, that of the first device.
func (c *EventChannel) clock() verbs.Clock { return c.devs[0].Clock() }

// Devices returns the channel's devices (rdma_get_devices).
func (c *EventChannel) Devices() []*verbs.Device { return slices.Clone(c.devs) }

// GetEvent waits for the next event and returns it (rdma_get_cm_event). Each event must be
// acknowledged with Event.Ack. The error is the context's, or ErrClosed.
func (c *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	const op = "get event"
	e, err := c.TryGetEvent()
	if err != errNoEvent {
		return e, err
	}
	n, err := c.beginWait(op)
	if err != nil {
		return nil, err
	}
	defer c.endWait()
	e, err = wakeup.Wait(ctx, n, c.take)
	switch {
	case err == wakeup.ErrClosed:
		return nil, errChannelClosed(op)
	case err != nil:
		return nil, &verbs.Error{Op: op, Err: err}
	}
	return e, nil
}

// beginWait returns the notifier of events from now on. The caller calls endWait afterwards.
func (c *EventChannel) beginWait(op string) (*wakeup.Notifier, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids < 0 {
		return nil, errChannelClosed(op)
	}
	if c.notifier == nil {
		c.notifier = wakeup.New(c.clock())
	}
	c.waiting++
	return c.notifier, nil
}

func (c *EventChannel) endWait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		c.notifier = nil
	}
}

func errChannelClosed(op string) error {
	return verbs.Errorf(verbs.ErrClosed, op, "the event channel is closed")
}

// errNoEvent is the most frequent error of TryGetEvent, allocated once.
var errNoEvent error = &verbs.Error{Op: "get event", Err: verbs.ErrAgain}

// TryGetEvent is like GetEvent but does not wait: without an event, the error is verbs.ErrAgain. It
// is for event loops with OnEvent (rdma_get_cm_event on a channel whose descriptor has O_NONBLOCK).
func (c *EventChannel) TryGetEvent() (*Event, error) {
	e, ok, _ := c.take()
	if ok {
		return e, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids < 0 {
		return nil, errChannelClosed("get event")
	}
	return nil, errNoEvent
}

// OnEvent registers a function f that is called with the number of events added to the channel. It
// is for programs that do not wait in GetEvent. Such a program may poll a descriptor that f writes
// to, and take events with TryGetEvent. If n is negative, −n events were dropped because their ID
// was closed or migrated. If the channel already has events, f is called for these too. A nil f
// ends the calls.
//
// f runs on its own goroutine soon after the change, with no lock held. It may call any method
// except OnEvent of the same channel. Calls for one channel are made one at a time, in the order of
// the changes. Several changes may be coalesced into one call. When OnEvent returns, the previous
// function is not running and will not be called.
func (c *EventChannel) OnEvent(f func(n int)) {
	c.mu.Lock()
	wait := c.onEvent.Set(c.clock(), f, len(c.events))
	c.mu.Unlock()
	wait()
}

// WaitCallbacks waits until the function of OnEvent has been called for all changes so far, such as
// the events that [ID.Close] dropped. That function must not call WaitCallbacks.
func (c *EventChannel) WaitCallbacks() { c.onEvent.Wait() }

// Close closes the channel (rdma_destroy_event_channel). Calls of GetEvent return. The error is
// ErrBusy while the channel has IDs, and ErrClosed after the first Close.
func (c *EventChannel) Close() error {
	const op = "close event channel"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ids < 0:
		return verbs.Errorf(verbs.ErrClosed, op, "it is already closed")
	case c.ids > 0:
		return verbs.Errorf(verbs.ErrBusy, op, "%d IDs use it", c.ids)
	}
	c.ids = -1
	if c.notifier != nil {
		c.notifier.Close()
	}
	return nil
}

// addID counts a new ID.
func (c *EventChannel) addID(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ids < 0 {
		return errChannelClosed(op)
	}
	c.ids++
	return nil
}

// add appends events to the queue.
func (c *EventChannel) add(events ...*Event) {
	if len(events) == 0 {
		return
	}
	c.mu.Lock()
	c.events = append(c.events, events...)
	c.onEvent.Changed(len(events))
	n := c.notifier
	c.mu.Unlock()
	if n != nil {
		n.Notify()
	}
}

// take removes the oldest event from the queue and returns it.
func (c *EventChannel) take() (e *Event, ok, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return nil, false, false
	}
	e, c.events[0] = c.events[0], nil
	if c.events = c.events[1:]; len(c.events) == 0 {
		c.events = nil
	}
	e.owner().signals.addUnacked()
	if e.Type == ConnectRequest {
		e.ID.delivered.Store(true)
	}
	if e.Type == AddrChange {
		e.ID.addrChangeQueued.Store(false)
	}
	return e, true, len(c.events) > 0
}

// removeID undoes addID. It removes the ID's events from the queue and returns them.
func (c *EventChannel) removeID(id *ID) (out []*Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids--
	var kept []*Event
	for _, e := range c.events {
		if e.owner() == id {
			out = append(out, e)
		} else {
			kept = append(kept, e)
		}
	}
	c.events = kept
	c.onEvent.Changed(-len(out))
	return out
}

// takeRequest removes the ConnectRequest for which id was created, and returns it to be
// acknowledged; nil if it is not in the queue.
func (c *EventChannel) takeRequest(id *ID) *Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.events, func(e *Event) bool { return e.Type == ConnectRequest && e.ID == id })
	if at < 0 {
		return nil
	}
	e := c.events[at]
	c.events = slices.Delete(c.events, at, at+1)
	c.onEvent.Changed(-1)
	e.owner().signals.addUnacked()
	return e
}

// signals has the conditions, other than events, that goroutines wait for. No other lock is taken
// while its lock is held.
type signals struct {
	mu      sync.Mutex
	unacked int32         // events of the ID that GetEvent has returned, not yet acknowledged
	done    bool          // the connection has ended, or will never exist
	acked   chan struct{} // closed when unacked becomes 0; nil if no goroutine waits
	doneCh  chan struct{} // closed when done is set; nil before the first call of ended
}

// addUnacked counts an event that must be acknowledged.
func (s *signals) addUnacked() {
	s.mu.Lock()
	s.unacked++
	s.mu.Unlock()
}

// ack undoes addUnacked.
func (s *signals) ack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unacked--; s.unacked == 0 && s.acked != nil {
		close(s.acked)
		s.acked = nil
	}
}

// waitAcked waits until all events are acknowledged.
func (s *signals) waitAcked(ctx context.Context, c verbs.Clock) error {
	s.mu.Lock()
	if s.unacked == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.acked == nil {
		s.acked = make(chan struct{})
	}
	acked := s.acked
	s.mu.Unlock()
	return wakeup.ReceiveContext(ctx, c, acked)
}

// end records that the connection has ended or will never exist. It may be called again.
func (s *signals) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done && s.doneCh != nil {
		close(s.doneCh)
	}
	s.done = true
}

func (s *signals) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// ended returns a channel that end closes.
func (s *signals) ended() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doneCh == nil {
		s.doneCh = make(chan struct{})
		if s.done {
			close(s.doneCh)
		}
	}
	return s.doneCh
}
