package verbs

import (
	"context"
	"math"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// AsyncEventType is the kind of an asynchronous event (ibv_event_type, same values).
type AsyncEventType uint8

const (
	EventCQErr AsyncEventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
)

var asyncEvents = []string{"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
	"PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR",
	"SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL"}

// String returns the ibverbs name without IBV_EVENT_.
func (t AsyncEventType) String() string { return name(asyncEvents, int(t), "async event") }

// AsyncEvent is an asynchronous event of a device or of an object on it (ibv_async_event). Type
// determines which of the other fields is set.
type AsyncEvent struct {
	Type    AsyncEventType
	QP      *QP
	CQ      *CQ
	SRQ     *SRQ
	PortNum uint8
}

// Limits on queued asynchronous events; further events are dropped. maxObjectEvents is per QP, CQ
// or SRQ, because a great many QPs may fail at the same time, and a program may wait for
// EventQPLastWQEReached of each. maxDeviceEvents is for the device and its ports together.
const (
	maxObjectEvents = 16
	maxDeviceEvents = 1024
	maxDiscarded    = 64 // events of closed objects that may stay in a queue with few other events
)

// eventCounts counts an object's events, protected by asyncQueue.mu. It is small, because a program
// may have a great many QPs.
type eventCounts struct {
	queued  uint16 // in the queue, or the value discarded
	unacked uint16 // taken and not yet acknowledged
}

// discarded is the value of queued after the object was closed. Its events in the queue no
// longer count.
const discarded = math.MaxUint16

// full reports whether another event of the object is dropped. All events of a closed object are
// dropped.
func (c *eventCounts) full() bool {
	return c.queued >= maxObjectEvents || c.queued+c.unacked == math.MaxUint16
}

// GetAsyncEvent waits for the device's next asynchronous event, and acknowledges it. The error is
// the context's, or ErrClosed when the device is closed. Events of a closed object are dropped.
//
// Unlike in libibverbs, the object of the event may therefore be closed before the program has
// handled the event. Methods of a closed object return ErrClosed.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "get async event"
	e, err := wakeup.Wait(ctx, d.events.notifier, func() (AsyncEvent, bool, bool) { return d.events.take(false) })
	switch {
	case err == wakeup.ErrClosed:
		return e, Errorf(ErrClosed, op, "%s is closed", d.Name())
	case err != nil:
		return e, wrap(op, err)
	}
	return e, nil
}

// errNoAsyncEvent is the most frequent error of TryGetAsyncEvent, allocated once.
var errNoAsyncEvent error = &Error{Op: "get async event", Err: ErrAgain}

// TryGetAsyncEvent returns the device's next asynchronous event (ibv_get_async_event on a
// descriptor with O_NONBLOCK). It is for event loops, and for programs that keep the event's object
// until they have handled the event: each event must be acknowledged with Ack, and Close of its QP,
// CQ or SRQ waits for that. If there is no event, the error is ErrAgain, after Close of the device
// ErrClosed.
func (d *Device) TryGetAsyncEvent() (AsyncEvent, error) {
	e, ok, _ := d.events.take(true)
	switch {
	case ok:
		return e, nil
	case d.events.notifier.Closed():
		return e, Errorf(ErrClosed, "get async event", "%s is closed", d.Name())
	}
	return e, errNoAsyncEvent
}

// Ack acknowledges an event that TryGetAsyncEvent returned (ibv_ack_async_event). Only the number
// of acknowledgements per object counts: any AsyncEvent with the same QP, CQ or SRQ will do. Ack
// fails with ErrInvalid if no event of that object is unacknowledged. For events of ports and of
// the device it does nothing.
func (e AsyncEvent) Ack() error {
	d, c := e.object()
	if d == nil {
		return nil
	}
	q := &d.events
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.unacked == 0 {
		return Errorf(ErrInvalid, "acknowledge async event", "%v: all events of its object are already acknowledged", e.Type)
	}
	if c.unacked--; c.unacked == 0 {
		q.acked.Broadcast()
	}
	return nil
}

// object returns the device of the event's object, and the object's counts; nil if the event has no
// object.
func (e *AsyncEvent) object() (*Device, *eventCounts) {
	switch {
	case e.QP != nil:
		return e.QP.pd.dev, &e.QP.events
	case e.CQ != nil:
		return e.CQ.dev, &e.CQ.events
	case e.SRQ != nil:
		return e.SRQ.pd.dev, &e.SRQ.events
	}
	return nil, nil
}

// OnAsyncEvent registers a function f that is called when the number of asynchronous events in the
// device's queue changes. n is 1 for an added event, and −k when k events are dropped because their
// object is closed. Several changes may be coalesced into one call with their sum. It is for
// programs that take events with TryGetAsyncEvent; Watch is for programs that handle events of the
// device in the function itself.
//
// f runs on its own goroutine soon after the change, with no lock held. It may call any method
// except OnAsyncEvent. Calls are made one at a time, in the order of the changes. When OnAsyncEvent
// returns, the previous function is not running and will not be called.
func (d *Device) OnAsyncEvent(f func(n int)) {
	q := &d.events
	q.mu.Lock()
	wait := q.onEvent.Set(d.clock, f, q.n)
	q.mu.Unlock()
	wait()
}

// asyncQueue is the queue of a device's events, oldest first. No other lock is taken while its lock
// is held.
type asyncQueue struct {
	clock    Clock
	notifier *wakeup.Notifier

	mu           sync.Mutex
	acked        sync.Cond
	events       []AsyncEvent // may include events of closed objects, but not at the front
	n            int          // events without those of closed objects
	deviceEvents int          // events without an object
	onEvent      wakeup.Hook
}

func (q *asyncQueue) init(c Clock) {
	q.clock, q.notifier = c, wakeup.New(c)
	q.acked.L = &q.mu
}

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch _, c := e.object(); {
	case c == nil && q.deviceEvents < maxDeviceEvents:
		q.deviceEvents++
	case c != nil && !c.full():
		c.queued++
	default:
		return
	}
	q.events = append(q.events, e)
	q.n++
	q.onEvent.Changed(1)
	q.notifier.Notify()
}

// take removes the oldest event and returns it. If toAck is set, the event must be acknowledged.
func (q *asyncQueue) take(toAck bool) (e AsyncEvent, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.n == 0 {
		return e, false, false
	}
	e = q.pop()
	q.n--
	switch _, c := e.object(); {
	case c == nil:
		q.deviceEvents--
	default:
		c.queued--
		if toAck {
			c.unacked++
		}
	}
	q.trim()
	return e, true, q.n > 0
}

// pop removes the first event.
func (q *asyncQueue) pop() AsyncEvent {
	e := q.events[0]
	q.events[0] = AsyncEvent{} // drops the reference to its object
	q.events = q.events[1:]
	return e
}

// trim removes the events of closed objects from the front.
func (q *asyncQueue) trim() {
	for len(q.events) > 0 && q.events[0].isDiscarded() {
		q.pop()
	}
}

// isDiscarded reports whether the event's object was closed.
func (e *AsyncEvent) isDiscarded() bool {
	_, c := e.object()
	return c != nil && c.queued == discarded
}

// discard drops the events of an object that is being closed, and waits until the taken events
// are acknowledged. c has the object's counts. discard does not search the queue for the events,
// because it may have a great many of other objects. Discarded events stay in the queue until their
// number exceeds a quarter of the other events, and are then removed together.
func (q *asyncQueue) discard(c *eventCounts) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.queued == discarded {
		return
	}
	n := int(c.queued)
	c.queued = discarded
	q.n -= n
	if q.trim(); len(q.events)-q.n > q.n/4+maxDiscarded {
		q.events = slices.DeleteFunc(q.events, func(e AsyncEvent) bool { return e.isDiscarded() })
	}
	q.onEvent.Changed(-n)
	wakeup.Await(q.clock, &q.acked, func() bool { return c.unacked == 0 })
}
