package verbs

import (
	"maps"
	"slices"
	"sync"
	"syscall"
)

// Watch registers f to be called with each event of the device and of its ports, until stop is
// called. These are EventPortActive, EventPortErr and EventGIDChange with the port number, and
// EventDeviceFatal with port 0. Events of QPs, CQs and SRQs are not included.
//
// f is called on the goroutine that reports the event, before GetAsyncEvent returns it, and must
// not wait for another event. Calls for different events may overlap. EventDeviceFatal is the last
// event: the device has failed for good, or Close was called. After it, Watch fails with ENODEV.
// stop does not wait for a running call of f.
func (d *Device) Watch(f func(t AsyncEventType, port uint8)) (stop func(), err error) {
	w := &d.watchers
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fatal {
		return nil, Errorf(syscall.ENODEV, "watch device", "%s has failed or is closed", d.Name())
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

// watchers has the functions that Watch has registered.
type watchers struct {
	mu    sync.Mutex
	f     map[int]func(AsyncEventType, uint8)
	last  int  // the last key of f
	fatal bool // EventDeviceFatal was raised
}

// handleEvent handles an event of the device or of a port from the provider.
func (d *Device) handleEvent(t AsyncEventType, port uint8) {
	if !d.notifyWatchers(t, port) {
		return
	}
	if t == EventDeviceFatal {
		d.failQPs()
	}
	d.events.add(AsyncEvent{Type: t, PortNum: port})
}

// notifyWatchers passes an event to the watchers. It returns false after EventDeviceFatal.
func (d *Device) notifyWatchers(t AsyncEventType, port uint8) bool {
	w := &d.watchers
	w.mu.Lock()
	if w.fatal {
		w.mu.Unlock()
		return false
	}
	w.fatal = t == EventDeviceFatal
	watching := slices.Collect(maps.Values(w.f))
	w.mu.Unlock()
	for _, f := range watching {
		f(t, port)
	}
	return true
}

// failQPs moves every QP to ERR, so that posted requests complete.
func (d *Device) failQPs() {
	d.mu.Lock()
	pds := d.allPDs()
	d.mu.Unlock()
	for _, pd := range pds {
		pd.qpsMu.Lock()
		qps := slices.Collect(maps.Keys(pd.qps))
		pd.qpsMu.Unlock()
		for _, qp := range qps {
			if qp.State() != StateReset {
				// This fails only if the QP has been closed meanwhile, and then there is nothing
				// to flush.
				_ = qp.modify(&QPAttr{QPState: StateErr}, QPAttrState)
			}
		}
	}
}
