package fabric

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/softrnic/softrnic/link/clock"
)

// Process is ordinary Go code of a host, in virtual time. One process runs at a time, or one of
// each worker (Config.Workers), and no time of its host passes meanwhile. It goes on until it
// waits: in Sleep or Until, or in a method of packages verbs, rdmacm, rsocket, rpcrdma, or NVMe's
// host and target, whose objects are those of a device on this fabric.
//
// A process must not wait for another one by other means, such as a channel, a mutex or
// time.Sleep: the whole fabric would wait with it. What it shares with others of its worker needs
// no lock.
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
	s := h.shard
	s.started++
	p := &Process{host: h, do: do, server: server, number: s.started}
	if !server {
		s.processes++
	}
	s.live[p] = struct{}{}
	s.runnable = append(s.runnable, p)
}

// resume lets the process run until it waits or ends.
func (p *Process) resume() {
	s := p.host.shard
	if p.next == nil {
		p.next, p.stop = iter.Pull(p.run)
	}
	s.running, s.acting = p, p.host
	alive := false
	defer func() { // also if next panics or ends the goroutine, because the process does
		s.running = nil
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
	s := p.host.shard
	defer func() {
		s.running = nil
		p.remove()
	}()
	if p.server && p.next == nil {
		p.resume() // the package that has started it waits for its end
	}
	if p.next != nil {
		s.running = p // so that its deferred functions do not wait either
		p.stop()
	}
}

func (p *Process) remove() {
	s := p.host.shard
	if p.ended {
		return
	}
	p.ended = true
	delete(s.live, p)
	if !p.server {
		s.processes--
	}
}

// Host returns the process's host.
func (p *Process) Host() *Host { return p.host }

// Now returns the virtual time since the fabric began.
func (p *Process) Now() time.Duration { return p.host.Now() }

// Sleep waits for a virtual time.
func (p *Process) Sleep(d time.Duration) {
	s := p.host.shard
	s.agenda.add(s.now.after(max(d, 0)), &p.host.origin, function(func() { s.runnable = append(s.runnable, p) }), nil)
	p.pause()
}

// Until waits until ready returns true. It is asked after each event of the host. Without
// Config.Workers it may be a matter of other hosts, whose changes are seen within a microsecond.
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
	s := h.shard
	switch p := s.running; {
	case p != nil:
		if ready() {
			return
		}
		p.ready = ready
		h.parked = append(h.parked, p)
		p.pause()
	case s.handling && ready():
	case s.handling:
		panic("fabric: a callback waits for what happens later: start a process with Host.Go")
	case !h.f.advance(never, ready):
		panic(fmt.Sprintf("fabric: at %v nothing is left that could end a wait", h.f.Now()))
	}
}

// touched is called when something has happened to a host, which its processes may wait for.
func (h *Host) touched() {
	if len(h.parked) > 0 && !h.changed {
		h.changed = true
		h.shard.changed = append(h.shard.changed, h)
	}
}

// wake makes the host's processes runnable that have what they wait for.
func (h *Host) wake() {
	h.parked = slices.DeleteFunc(h.parked, func(p *Process) bool {
		if !p.ready() {
			return false
		}
		h.shard.runnable = append(h.shard.runnable, p)
		return true
	})
}

// betweenHosts is the time after which a host's processes see what a process of another host has
// done by means other than packets.
const betweenHosts = time.Microsecond

// runProcesses runs the processes that can run.
func (s *shard) runProcesses() {
	for {
		for len(s.changed) > 0 {
			h := s.changed[0]
			s.changed = slices.Delete(s.changed, 0, 1)
			h.changed = false
			h.wake()
		}
		if len(s.runnable) == 0 {
			return
		}
		p := s.runnable[0]
		s.runnable = slices.Delete(s.runnable, 0, 1)
		if p.ended {
			continue // its fabric was closed
		}
		if p.ready != nil && !p.ready() { // another process has taken what it waits for
			p.host.parked = append(p.host.parked, p)
			continue
		}
		p.ready = nil
		p.resume()
		p.host.touched()
		if !s.looking && s.f.lookahead == 0 { // with workers, a process sees its own host only
			s.looking = true
			s.agenda.add(s.now.after(betweenHosts), &s.origin, function(s.wakeAll), nil)
		}
	}
}

// wakeAll looks after the processes of all hosts.
func (s *shard) wakeAll() {
	s.looking = false
	s.touchAll()
}

// touchAll says of all hosts that something may have happened.
func (s *shard) touchAll() {
	if len(s.live) == 0 {
		return // no process waits
	}
	for _, h := range s.hosts {
		h.touched()
	}
}

// hostTime is the clock of a host.
type hostTime struct{ h *Host }

var _ clock.Scheduler = hostTime{}

// Now implements clock.Source.
func (t hostTime) Now() time.Time { return t.h.shard.now.time() }

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
