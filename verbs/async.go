package verbs

import (
	"context"
	"sync"
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

// String is the ibverbs name without IBV_EVENT_.
func (t AsyncEventType) String() string { return name(asyncEvents, int(t), "async event") }

// AsyncEvent is something that happened to a device or to an object on it (ibv_async_event). Type says which of the
// others is set.
type AsyncEvent struct {
	Type AsyncEventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port uint8
}

// maxAsyncEvents bounds what waits for an application that never asks: beyond it, new events are dropped.
const maxAsyncEvents = 1024

// GetAsyncEvent waits for the device's next asynchronous event. The error is the context's, or ErrDestroyed when the
// device is closed. Events of a destroyed object are dropped; nothing needs acknowledging.
func (d *Device) GetAsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const op = "get async event"
	q := &d.events
	for {
		if e, ok := q.take(); ok {
			return e, nil
		}
		select {
		case <-q.wake:
		case <-q.gone:
			return AsyncEvent{}, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
		case <-ctx.Done():
			return AsyncEvent{}, wrap(op, ctx.Err())
		}
	}
}

// asyncQueue is a device's events, oldest first. Its lock is taken last.
type asyncQueue struct {
	wake, gone chan struct{} // as in CompChannel

	mu     sync.Mutex
	events []AsyncEvent
}

func (q *asyncQueue) init() { q.wake, q.gone = make(chan struct{}, 1), make(chan struct{}) }

func (q *asyncQueue) close() { close(q.gone) }

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < maxAsyncEvents {
		q.events = append(q.events, e)
		q.signal()
	}
}

func (q *asyncQueue) take() (e AsyncEvent, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false
	}
	e, q.events[0] = q.events[0], AsyncEvent{} // let its object go
	q.events = q.events[1:]
	if len(q.events) > 0 {
		q.signal() // one token stood for several events
	}
	return e, true
}

func (q *asyncQueue) forget(which func(*AsyncEvent) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept []AsyncEvent
	for i := range q.events {
		if !which(&q.events[i]) {
			kept = append(kept, q.events[i])
		}
	}
	q.events = kept
}

func (q *asyncQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
