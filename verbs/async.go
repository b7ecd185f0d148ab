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

// AsyncEvent is an asynchronous event of a device or of an object on it (ibv_async_event). Type determines which of the
// other fields is set.
type AsyncEvent struct {
	Type AsyncEventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port uint8
}

// How many events a device keeps for an application that does not call GetAsyncEvent: of each QP, CQ and SRQ, and of the ports
// and the device together. Further ones are dropped. Those of one object do not count against those of another: a program may wait
// for EventQPLastWQEReached of each of very many QPs that fail at once.
const (
	maxObjectEvents = 16
	maxDeviceEvents = 1024
	maxDiscarded    = 64 // how many of destroyed objects may stay in a queue that has few others
)

// eventCounts counts an object's events; asyncQueue.mu guards it. It is small, as is a QP.
type eventCounts struct {
	queued  uint16 // or discarded
	unacked uint16 // were taken, and are to be acknowledged
}

// discarded is in queued of an object that was destroyed: what the queue still has of it does not count.
const discarded = math.MaxUint16

// full reports whether one more event of the object is dropped, as all are of one that was destroyed.
func (c *eventCounts) full() bool {
	return c.queued >= maxObjectEvents || c.queued+c.unacked == math.MaxUint16
}

// GetAsyncEvent waits for the device's next asynchronous event, and acknowledges it. The error is the context's, or
// ErrDestroyed when the device is closed. Events of a destroyed object are dropped.
//
// Unlike in libibverbs, the object of the event may so be destroyed before the program has handled the event: methods of a
// destroyed object return ErrDestroyed. TryGetAsyncEvent does not acknowledge.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "get async event"
	e, err := wakeup.Wait(ctx, d.events.notifier, func() (AsyncEvent, bool, bool) { return d.events.take(false) })
	switch {
	case err == wakeup.ErrClosed:
		return e, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	case err != nil:
		return e, wrap(op, err)
	}
	return e, nil
}

// errNoAsyncEvent is what TryGetAsyncEvent returns most often.
var errNoAsyncEvent error = &Error{Op: "get async event", Err: ErrAgain}

// TryGetAsyncEvent returns the device's next asynchronous event, which must be acknowledged with Ack: Destroy of the event's
// QP, CQ or SRQ waits for that (ibv_get_async_event on a descriptor with O_NONBLOCK). If there is no event, the error is
// ErrAgain, after Close of the device ErrDestroyed.
func (d *Device) TryGetAsyncEvent() (AsyncEvent, error) {
	e, ok, _ := d.events.take(true)
	switch {
	case ok:
		return e, nil
	case d.events.notifier.Closed():
		return e, Errorf(ErrDestroyed, "get async event", "%s is closed", d.Name())
	}
	return e, errNoAsyncEvent
}

// Ack acknowledges an event that TryGetAsyncEvent returned (ibv_ack_async_event). Events are counted, not told apart: any
// AsyncEvent with the same QP, CQ or SRQ will do. It fails with ErrInvalid if no event of that object is left to be
// acknowledged. Events of ports and of the device need no acknowledgement, and Ack of them does nothing.
func (e AsyncEvent) Ack() error {
	d, c := e.object()
	if d == nil {
		return nil
	}
	q := &d.events
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.unacked == 0 {
		return Errorf(ErrInvalid, "acknowledge async event", "%v: all events of its object are acknowledged already", e.Type)
	}
	if c.unacked--; c.unacked == 0 {
		q.acked.Broadcast()
	}
	return nil
}

// object returns the device of the event's object, and the object's counts; nil if the event has no object.
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

// OnAsyncEvent has f called whenever an asynchronous event is added to the device's queue, with n = 1, or with −n when n
// events are dropped because their object is destroyed; n may also be the sum of several changes. It is for programs that take events
// with TryGetAsyncEvent. f is called on a goroutine of its own, soon after the change, with no lock held: it may call any method, but
// OnAsyncEvent. Calls are made one at a time, in the order of the changes; when OnAsyncEvent returns, the function of an
// earlier one is not running and will not be called. Watch is for programs that handle events of the device in the function itself.
func (d *Device) OnAsyncEvent(f func(n int)) {
	q := &d.events
	q.mu.Lock()
	wait := q.onEvent.Set(f, q.n)
	q.mu.Unlock()
	wait()
}

// asyncQueue is the queue of a device's events, oldest first. No other lock is taken while its lock is held.
type asyncQueue struct {
	notifier *wakeup.Notifier

	mu       sync.Mutex
	acked    sync.Cond
	events   []AsyncEvent // some are of destroyed objects, but not the first
	n        int          // of those that are not
	ofDevice int          // of those, without an object
	onEvent  wakeup.Hook
}

func (q *asyncQueue) init() {
	q.notifier = wakeup.New()
	q.acked.L = &q.mu
}

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch _, c := e.object(); {
	case c == nil && q.ofDevice < maxDeviceEvents:
		q.ofDevice++
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

// take removes the oldest event and returns it. If toAck is set, the event has to be acknowledged.
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
		q.ofDevice--
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
	q.events[0] = AsyncEvent{} // lets the garbage collector have its object
	q.events = q.events[1:]
	return e
}

// trim removes the events of destroyed objects from the front.
func (q *asyncQueue) trim() {
	for len(q.events) > 0 && q.events[0].isDiscarded() {
		q.pop()
	}
}

// isDiscarded tells that the event's object was destroyed.
func (e *AsyncEvent) isDiscarded() bool {
	_, c := e.object()
	return c != nil && c.queued == discarded
}

// discard drops the events of an object that is being destroyed, and waits until those that were taken are acknowledged.
// c has the object's counts of both. The events are not looked for, as there may be very many of other objects: they stay in the
// queue until more than a quarter as many are dropped as are not, and leave it together.
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
	for c.unacked > 0 {
		q.acked.Wait()
	}
}
