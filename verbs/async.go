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

// GetAsyncEvent waits for the device's next asynchronous event. The error is the context's, or ErrDestroyed when the
// device is closed. Events of a destroyed object are dropped. Unlike in libibverbs, events need no acknowledgement.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "get async event"
	e, err := wakeup.Wait(ctx, d.events.notifier, d.events.take)
	switch {
	case err == wakeup.ErrClosed:
		return e, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	case err != nil:
		return e, wrap(op, err)
	}
	return e, nil
}

// asyncQueue is the queue of a device's events, oldest first. No other lock is taken while its lock is held.
type asyncQueue struct {
	notifier *wakeup.Notifier

	mu     sync.Mutex
	events []AsyncEvent
}

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < maxAsyncEvents {
		q.events = append(q.events, e)
		q.notifier.Notify()
	}
}

func (q *asyncQueue) take() (e AsyncEvent, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false, false
	}
	e, q.events[0] = q.events[0], AsyncEvent{} // lets the garbage collector have its object
	q.events = q.events[1:]
	return e, true, len(q.events) > 0
}

// discard drops the events that match.
func (q *asyncQueue) discard(matches func(*AsyncEvent) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept []AsyncEvent
	for i := range q.events {
		if !matches(&q.events[i]) {
			kept = append(kept, q.events[i])
		}
	}
	q.events = kept
}
