//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

// userContext is a struct ibv_context. Contexts of one device share the device. Each has its own
// objects and events. When a context is closed, its objects remain until they are destroyed or the
// process ends. Their events are dropped.
type userContext struct {
	*device
	events *eventQueue[asyncEvent]
}

type asyncEvent struct {
	t    verbs.AsyncEventType
	port uint8
	of   *C.struct_sr_events // of the object, or nil
}

var contexts handle.Table[userContext]

//export srOpenContext
func srOpenContext(dev C.int, h *C.uint32_t, fd *C.int) C.int {
	d := stacks.device(int(dev))
	if d == nil {
		return invalid
	}
	if err := verbs.InjectedFault("open_device", d.dev); err != nil {
		return errno(err)
	}
	events, err := newEventQueue[asyncEvent]()
	if err != nil {
		return errno(err)
	}
	*h, *fd = C.uint32_t(contexts.Add(&userContext{d, events})), C.int(events.fd)
	return 0
}

//export srCloseContext
func srCloseContext(h C.uint32_t) C.int {
	return errno(contexts.Remove(uint32(h), func(c *userContext) error { return c.events.close() }))
}

//export srGetAsyncEvent
func srGetAsyncEvent(h C.uint32_t, event *C.struct_sr_async_event) C.int {
	c := contexts.Get(uint32(h))
	if c == nil {
		return notFound
	}
	e, err := c.events.take(asyncEvent.count)
	if err != nil {
		return C.int(syscall.EAGAIN)
	}
	*event = C.struct_sr_async_event{_type: C.uint32_t(e.t), port: C.uint32_t(e.port), of: e.of}
	return 0
}

// object is the Context of a QP, CQ or SRQ. It says where the object's asynchronous events go.
type object struct {
	ctx    *userContext
	events *C.struct_sr_events // in C's memory
}

// count counts an event that C takes.
func (e asyncEvent) count() {
	if e.of != nil {
		atomic.AddUint32((*uint32)(&e.of.async), 1)
	}
}

// distributeAsyncEvents dispatches the device's events until the device is closed or the process
// ends.
func distributeAsyncEvents(dev *verbs.Device) {
	more := make(chan struct{}, 1)
	dev.OnAsyncEvent(func(int) {
		select {
		case more <- struct{}{}:
		default:
		}
	})
	for {
		switch e, err := dev.TryGetAsyncEvent(); {
		case err == nil:
			dispatch(dev, &e)
			_ = e.Ack() // Close of the object waits for this, and discardEvents then finds the event
		case errors.Is(err, verbs.ErrAgain):
			<-more
		default:
			return
		}
	}
}

// dispatch passes an event of an object to its context, and other events to every context of the
// device.
func dispatch(dev *verbs.Device, e *verbs.AsyncEvent) {
	var of any
	switch {
	case e.QP != nil:
		of = e.QP.Context()
	case e.CQ != nil:
		of = e.CQ.Context()
	case e.SRQ != nil:
		of = e.SRQ.Context()
	default:
		for _, c := range contexts.All() {
			if c.dev == dev {
				c.events.add(asyncEvent{t: e.Type, port: e.PortNum})
			}
		}
		return
	}
	switch o := of.(type) {
	case *object:
		o.ctx.events.add(asyncEvent{e.Type, e.PortNum, o.events})
	case *sharedQP:
		o.add(e)
	}
}

// discardEvents drops the asynchronous events of an object that is destroyed.
func (o *object) discardEvents() {
	o.ctx.events.discard(func(e asyncEvent) bool { return e.of == o.events })
}
