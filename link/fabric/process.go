package fabric

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/softrnic/softrnic/link/clock"
)

// Process is ordinary Go code of a host, in virtual time. One process runs at a time, and no time
// passes meanwhile. It goes on until it waits: in Sleep or Until, or in a method of packages verbs,
// rdmacm or rsocket, whose objects are those of a device on this fabric.
//
// A process must not wait for another one by other means, such as a channel, a mutex or
// time.Sleep: the whole fabric would wait with it. What it shares with others needs no lock.
type Process struct {
	host   *Host
	do     func(p *Process)
	next   func() (struct{}, bool) // nil until it begins
	stop   func()
	yield  func(struct{}) bool
	ready  func() bool // while it is parked
	number uint64      // in the order of their starts
	ended  bool
	server bool // of a package: Wait does not wait for it
}

// closed is the panic that ends a process when its fabric is closed.
type closed struct{}

// Go starts a process on the host. It begins when the fabric runs. A panic of the process is one of
// the call that runs the fabric, and runtime.Goexit ends that call's goroutine: so a process of a
// test may call t.Fatal, if the test's goroutine runs the fabric.
func (h *Host) Go(do func(p *Process)) { h.start(do, false) }

func (h *Host) start(do func(p *Process), server bool) {
	f := h.f
	f.started++
	p := &Process{host: h, do: do, server: server, number: f.started}
	if !server {
		f.processes++
	}
	f.live[p] = struct{}{}
	f.runnable = append(f.runnable, p)
}

// resume lets the process run until it waits or ends.
func (p *Process) resume() {
	f := p.host.f
	if p.next == nil {
		p.next, p.stop = iter.Pull(p.run)
	}
	f.running = p
	alive := false
	defer func() { // also if next panics or ends the goroutine, because the process does
		f.running = nil
		if !alive {
			p.remove()
		}
	}()
	_, alive = p.next()
}

func (p *Process) run(yield func(struct{}) bool) {
	p.yield = yield
	defer func() {
		if r := recover(); r != nil && r != any(closed{}) {
			panic(r)
		}
	}()
	p.do(p)
}

// end ends the process, while its fabric is being closed.
func (p *Process) end() {
	f := p.host.f
	defer func() {
		f.running = nil
		p.remove()
	}()
	if p.server && p.next == nil {
		p.resume() // the package that has started it waits for its end
	}
	if p.next != nil {
		f.running = p // so that its deferred functions do not wait either
		p.stop()
	}
}

func (p *Process) remove() {
	f := p.host.f
	if p.ended {
		return
	}
	p.ended = true
	delete(f.live, p)
	if !p.server {
		f.processes--
	}
}

// Host returns the process's host.
func (p *Process) Host() *Host { return p.host }

// Now returns the virtual time since the fabric began.
func (p *Process) Now() time.Duration { return p.host.f.Now() }

// Sleep waits for a virtual time.
func (p *Process) Sleep(d time.Duration) {
	f := p.host.f
	f.agenda.add(f.now.after(max(d, 0)), &p.host.origin, function(func() { f.runnable = append(f.runnable, p) }), nil)
	p.pause()
}

// Until waits until ready returns true. It may be a matter of other hosts. Their changes are seen
// within a microsecond.
func (p *Process) Until(ready func() bool) { p.host.park(ready) }

// WithTimeout is [context.WithTimeout] in virtual time.
func (p *Process) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return p.host.Clock().WithTimeout(ctx, d)
}

// pause lets the fabric go on without the process, until it is runnable.
func (p *Process) pause() {
	if p.host.f.closing || !p.yield(struct{}{}) {
		panic(closed{})
	}
}

// park waits until ready returns true: in a process, or on the goroutine that uses the fabric.
func (h *Host) park(ready func() bool) {
	f := h.f
	switch p := f.running; {
	case p != nil:
		if ready() {
			return
		}
		p.ready = ready
		h.parked = append(h.parked, p)
		p.pause()
	case f.handling && ready():
	case f.handling:
		panic("fabric: a callback waits for what happens later: start a process with Host.Go")
	case !f.advance(never, ready):
		panic(fmt.Sprintf("fabric: at %v nothing is left that could end a wait", f.Now()))
	}
}

// touched is called when something has happened to a host, which its processes may wait for.
func (h *Host) touched() {
	if len(h.parked) > 0 && !h.changed {
		h.changed = true
		h.f.changed = append(h.f.changed, h)
	}
}

// wake makes the host's processes runnable that have what they wait for.
func (h *Host) wake() {
	h.parked = slices.DeleteFunc(h.parked, func(p *Process) bool {
		if !p.ready() {
			return false
		}
		p.ready = nil
		h.f.runnable = append(h.f.runnable, p)
		return true
	})
}

// betweenHosts is the time after which a host's processes see what a process of another host has
// done by means other than packets.
const betweenHosts = time.Microsecond

// runProcesses runs the processes that can run.
func (f *Fabric) runProcesses() {
	for {
		for len(f.changed) > 0 {
			h := f.changed[0]
			f.changed = slices.Delete(f.changed, 0, 1)
			h.changed = false
			h.wake()
		}
		if len(f.runnable) == 0 {
			return
		}
		p := f.runnable[0]
		f.runnable = slices.Delete(f.runnable, 0, 1)
		if p.ended {
			continue // its fabric was closed
		}
		p.resume()
		p.host.touched()
		if !f.looking {
			f.looking = true
			f.agenda.add(f.now.after(betweenHosts), &f.origin, function(f.wakeAll), nil)
		}
	}
}

// wakeAll looks after the processes of all hosts.
func (f *Fabric) wakeAll() {
	f.looking = false
	for _, h := range f.hosts {
		h.touched()
	}
}

// hostTime is the clock of a host.
type hostTime struct{ h *Host }

var _ clock.Scheduler = hostTime{}

// Now implements clock.Source.
func (t hostTime) Now() time.Time { return t.h.f.now.time() }

// AfterFunc implements clock.Source.
func (t hostTime) AfterFunc(d time.Duration, f func()) clock.Timer {
	timer := &timer{h: t.h, f: f}
	timer.Reset(d)
	return timer
}

// Read implements clock.Source.
func (t hostTime) Read(b []byte) (int, error) { return t.h.random.Read(b) }

// Go implements clock.Scheduler.
func (t hostTime) Go(f func()) { t.h.start(func(*Process) { f() }, true) }

// Park implements clock.Scheduler.
func (t hostTime) Park(ready func() bool) { t.h.park(ready) }
