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
	e, err := wakeup.Wait(ctx, d.events.bell, d.events.take)
	switch {
	case err == wakeup.ErrClosed:
		return e, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	case err != nil:
		return e, wrap(op, err)
	}
	return e, nil
}

// asyncQueue is a device's events, oldest first. Its lock is taken last.
type asyncQueue struct {
	bell *wakeup.Bell

	mu     sync.Mutex
	events []AsyncEvent
}

func (q *asyncQueue) add(e AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < maxAsyncEvents {
		q.events = append(q.events, e)
		q.bell.Ring()
	}
}

func (q *asyncQueue) take() (e AsyncEvent, ok, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return e, false, false
	}
	e, q.events[0] = q.events[0], AsyncEvent{} // let its object go
	q.events = q.events[1:]
	return e, true, len(q.events) > 0
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
