package verbs

import (
	"context"
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

// maxAsyncEvents is how many events a device keeps for an application that does not call GetAsyncEvent. Further events
// are dropped.
const maxAsyncEvents = 1024

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
	d, unacked := e.unacked()
	if d == nil {
		return nil
	}
	q := &d.events
	q.mu.Lock()
	defer q.mu.Unlock()
	if *unacked == 0 {
		return Errorf(ErrInvalid, "acknowledge async event", "%v: all events of its object are acknowledged already", e.Type)
	}
	if *unacked--; *unacked == 0 {
		q.acked.Broadcast()
	}
	return nil
}

// unacked returns the device of the event's object, and the object's count of events that are to be acknowledged, which that
// device's asyncQueue.mu guards; nil if the event has no object.
func (e *AsyncEvent) unacked() (*Device, *int32) {
	switch {
	case e.QP != nil:
		return e.QP.pd.dev, &e.QP.unackedEvents
	case e.CQ != nil:
		return e.CQ.dev, &e.CQ.unackedEvents
	case e.SRQ != nil:
		return e.SRQ.pd.dev, &e.SRQ.unackedEvents
	}
	return nil, nil
}

// OnAsyncEvent has f called whenever an asynchronous event is added to the device's queue, with n = 1, or with −n when n
// events are dropped because their object is destroyed. It is for programs that take events with TryGetAsyncEvent. The rules
// are those of [CompChannel.OnEvent]: f is called with locks held, must not wait, and must not call a method of this package
// or of rdmacm. Watch is for programs that handle the event in the function itself.
func (d *Device) OnAsyncEvent(f func(n int)) {
	q := &d.events
	q.mu.Lock()
	defer q.mu.Unlock()
	q.onEvent = f
	q.onEvent.Changed(len(q.events))
}

// asyncQueue is the queue of a device's events, oldest first. No other lock is taken while its lock is held.
type asyncQueue struct {
	notifier *wakeup.Notifier

	mu      sync.Mutex
	acked   sync.Cond
	events  []AsyncEvent
	onEvent wakeup.Hook
}

func (q *asyncQueue) init() {
	q.notifier = wakeup.New()
	q.acked.L = &q.mu
}

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < maxAsyncEvents {
		q.events = append(q.events, e)
		q.onEvent.Changed(1)
		q.notifier.Notify()
	}
}

// take removes the oldest event and returns it. If toAck is set, the event has to be acknowledged.
func (q *asyncQueue) take(toAck bool) (e AsyncEvent, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false, false
	}
	e, q.events[0] = q.events[0], AsyncEvent{} // lets the garbage collector have its object
	q.events = q.events[1:]
	if _, unacked := e.unacked(); toAck && unacked != nil {
		*unacked++
	}
	return e, true, len(q.events) > 0
}

// discard drops the events of an object that is being destroyed, and waits until those that were taken are acknowledged.
// unacked is the object's count of them.
func (q *asyncQueue) discard(unacked *int32, matches func(*AsyncEvent) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept []AsyncEvent
	for i := range q.events {
		if !matches(&q.events[i]) {
			kept = append(kept, q.events[i])
		}
	}
	q.onEvent.Changed(len(kept) - len(q.events))
	q.events = kept
	for *unacked > 0 {
		q.acked.Wait()
	}
}
