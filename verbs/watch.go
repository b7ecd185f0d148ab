package verbs

import (
	"maps"
	"slices"
	"sync"
	"syscall"
)

// Watch has f called with each event of the device and of its ports: EventPortActive, EventPortErr and EventGIDChange
// with the number of the port, EventDeviceFatal with 0. That goes on until stop is called. Events of QPs, CQs and SRQs are
// not among them.
//
// f is called on the goroutine that brings the event, before GetAsyncEvent returns it, and must not wait for another one.
// Calls for different events may overlap. EventDeviceFatal is the last event: the device will never work again, or Close
// was called. If that was before, Watch fails with ENODEV. stop does not wait for a call that is running.
func (d *Device) Watch(f func(t AsyncEventType, port uint8)) (stop func(), err error) {
	w := &d.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fatal {
		return nil, Errorf(syscall.ENODEV, "watch device", "%s is gone", d.Name())
	}
	w.last++
	key := w.last
	if w.f == nil {
		w.f = make(map[int]func(AsyncEventType, uint8))
	}
	w.f[key] = f
	return func() {
		w.mu.Lock()
		delete(w.f, key)
		w.mu.Unlock()
	}, nil
}

// watchers are who hears of a device's events at once.
type watchers struct {
	mu    sync.Mutex
	f     map[int]func(AsyncEventType, uint8)
	last  int  // the last key
	fatal bool // EventDeviceFatal was passed on
}

// happened takes an event of the device or of a port from the provider.
func (d *Device) happened(t AsyncEventType, port uint8) {
	if !d.tell(t, port) {
		return
	}
	if t == EventDeviceFatal {
		d.failQPs()
	}
	d.events.add(AsyncEvent{Type: t, Port: port})
}

// tell passes an event to the watchers; false if there has been the last one already.
func (d *Device) tell(t AsyncEventType, port uint8) bool {
	w := &d.watchers
	w.mu.Lock()
	if w.fatal {
		w.mu.Unlock()
		return false
	}
	w.fatal = t == EventDeviceFatal
	tell := slices.Collect(maps.Values(w.f))
	w.mu.Unlock()
	for _, f := range tell {
		f(t, port)
	}
	return true
}

// failQPs takes every QP to ERR, so that whoever waits for a completion gets one.
func (d *Device) failQPs() {
	d.mu.Lock()
	pds := slices.Collect(maps.Keys(d.domains))
	for x := range d.xrcds {
		pds = append(pds, x.home)
	}
	d.mu.Unlock()
	for _, pd := range pds {
		pd.qpsMu.Lock()
		qps := slices.Collect(maps.Keys(pd.qps))
		pd.qpsMu.Unlock()
		for _, qp := range qps {
			if qp.State() != StateReset {
				// The only error is that the QP is destroyed meanwhile, and then there is nothing to flush.
				_ = qp.Modify(&QPAttr{QPState: StateErr}, QPAttrState)
			}
		}
	}
}
