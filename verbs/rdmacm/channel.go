package rdmacm

import (
	"context"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// EventChannel carries the events of any number of IDs on some devices (rdma_event_channel). Events of one ID come in
// the order in which they happened.
type EventChannel struct {
	devs []*verbs.Device

	notifier *wakeup.Notifier

	mu     sync.Mutex // taken after ID locks
	events []*Event
	ids    int
	dead   bool
}

// CreateEventChannel makes a channel. Its IDs live on the given devices, in whose order a way to a peer is looked for.
// ErrNotSupported if the provider of one has no rdma_cm.
func CreateEventChannel(devs ...*verbs.Device) (*EventChannel, error) {
	const op = "create event channel"
	if len(devs) == 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "no device is given")
	}
	for _, d := range devs {
		if d == nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "a device is nil")
		}
		if _, ok := d.Provider().(Provider); !ok {
			return nil, verbs.Errorf(verbs.ErrNotSupported, op, "the provider of %s has no rdma_cm", d.Name())
		}
	}
	return &EventChannel{devs: slices.Clone(devs), notifier: wakeup.New()}, nil
}

// provider is d's, which CreateEventChannel has checked.
func provider(d *verbs.Device) Provider { return d.Provider().(Provider) }

// Devices are those of the channel (rdma_get_devices).
func (c *EventChannel) Devices() []*verbs.Device { return slices.Clone(c.devs) }

// GetEvent waits for the next event, to be given back with Ack (rdma_get_cm_event). The error is the context's, or
// ErrDestroyed.
func (c *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	const op = "get event"
	e, err := wakeup.Wait(ctx, c.notifier, c.take)
	switch {
	case err == wakeup.ErrClosed:
		return nil, verbs.Errorf(verbs.ErrDestroyed, op, "the event channel is destroyed")
	case err != nil:
		return nil, &verbs.Error{Op: op, Detail: err.Error(), Err: err}
	}
	return e, nil
}

// Destroy ends the channel. ErrBusy while it has IDs. Calls of GetEvent return.
func (c *EventChannel) Destroy() error {
	const op = "destroy event channel"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead:
		return verbs.Errorf(verbs.ErrDestroyed, op, "it is destroyed already")
	case c.ids > 0:
		return verbs.Errorf(verbs.ErrBusy, op, "%d IDs use it", c.ids)
	}
	c.dead = true
	c.notifier.Close()
	return nil
}

// attach counts a new ID.
func (c *EventChannel) attach(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return verbs.Errorf(verbs.ErrDestroyed, op, "the event channel is destroyed")
	}
	c.ids++
	return nil
}

// add appends events.
func (c *EventChannel) add(events ...*Event) {
	if len(events) == 0 {
		return
	}
	c.mu.Lock()
	c.events = append(c.events, events...)
	c.mu.Unlock()
	c.notifier.Notify()
}

// take takes the oldest event.
func (c *EventChannel) take() (e *Event, ok, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return nil, false, false
	}
	e, c.events[0] = c.events[0], nil
	c.events = c.events[1:]
	e.owner().taken.add()
	if e.Type == ConnectRequest {
		e.ID.seen.Store(true)
	}
	if e.Type == AddrChange {
		e.ID.changing.Store(false)
	}
	return e, true, len(c.events) > 0
}

// withdraw takes an ID's events out and returns them, and stops counting the ID.
func (c *EventChannel) withdraw(id *ID) (out []*Event) {
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
	return out
}

// retract takes the ConnectRequest that id was made for, to be acknowledged; nil if it is not in the channel.
func (c *EventChannel) retract(id *ID) *Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.events, func(e *Event) bool { return e.Type == ConnectRequest && e.ID == id })
	if at < 0 {
		return nil
	}
	e := c.events[at]
	c.events = slices.Delete(c.events, at, at+1)
	e.owner().taken.add()
	return e
}

// tally counts an ID's events that are taken and not acknowledged. Its lock is taken last.
type tally struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n is 0 again; nil if nobody waits
}

func (t *tally) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait waits for n to be 0.
func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
