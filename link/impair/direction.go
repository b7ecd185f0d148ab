package impair

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// direction carries packets in one direction. Packets that need not wait are delivered by flush, on
// the caller's goroutine. If some packets may wait, all go through held, and one goroutine delivers
// them, or a timer of the link's own clock.
type direction struct {
	clock      clock.Clock
	deliver    func([]link.Frame) error
	delivering sync.Mutex // held during deliver

	mu      sync.Mutex
	cfg     Direction
	timed   bool // packets may have to wait
	cutter  link.Cutter
	random  *rand.Rand
	bad     bool  // Gilbert–Elliott state
	matched []int // matches per rule
	count   Counters
	ready   []*packet // packets for the next flush
	held    schedule
	spare   []*packet // free list
	order   uint64    // packets scheduled so far
	free    time.Time // when the rate limit admits the next packet
	started bool
	closed  bool
	timer   clock.Timer // of a clock other than the machine's

	wake chan struct{} // the head of held has changed
	stop chan struct{}
	done chan struct{} // closed when the goroutine has ended
}

func newDirection(c clock.Clock, cfg Direction, seed, stream uint64) *direction {
	d := &direction{clock: c, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	d.set(cfg, seed, stream)
	return d
}

// set replaces the configuration, and starts the random sequence and the rules' counts again. Once
// the goroutine runs, it delivers all packets.
func (d *direction) set(cfg Direction, seed, stream uint64) {
	cfg.Hold, cfg.Limit = cmp.Or(cfg.Hold, DefaultHold), cmp.Or(cfg.Limit, DefaultLimit)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cfg, d.random, d.matched = cfg, rand.New(rand.NewPCG(seed, stream)), make([]int, len(cfg.Rules))
	d.bad, d.free = false, time.Time{}
	d.timed = d.started || cfg.Delay > 0 || cfg.Rate > 0 || cfg.Reorder > 0 ||
		slices.ContainsFunc(cfg.Rules, func(r Rule) bool { return r.Action == Reorder })
}

func (d *direction) counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count
}

// chance draws a number even for probability 0. A change of one impairment thus does not change the
// random sequence of the others.
func (d *direction) chance(p float64) bool { return d.random.Float64() < p }

// pass applies the impairments to each packet of f.
func (d *direction) pass(f *link.Frame) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for p := range d.cutter.Packets(f) {
		d.packet(link.Frame{Data: p, TCI: f.TCI})
	}
}

// packet applies the impairments to a single packet, which it may modify. d.mu is held.
func (d *direction) packet(f link.Frame) {
	p := f.Data
	if d.closed || len(p) == 0 {
		return
	}
	d.count.Packets++
	var do [Reorder + 1]bool
	for i := range d.cfg.Rules {
		if r := &d.cfg.Rules[i]; r.Match == nil || r.Match(p) {
			d.matched[i]++
			n := d.matched[i] - max(r.Nth, 1) // 0 for the first packet that the rule acts on
			if n >= 0 && (r.Count < 0 || n < max(r.Count, 1)) {
				do[r.Action] = true
			}
		}
	}
	lost := d.chance(d.cfg.Loss) || do[Drop]
	if d.bad {
		d.bad = !d.chance(d.cfg.Burst.Leave)
	} else {
		d.bad = d.chance(d.cfg.Burst.Enter)
	}
	corrupt := d.chance(d.cfg.Corrupt) || do[Corrupt]
	bit := d.random.IntN(8 * len(p))
	duplicate := d.chance(d.cfg.Duplicate) || do[Duplicate]
	reorder := d.chance(d.cfg.Reorder) || do[Reorder]
	jitter := time.Duration((2*d.random.Float64() - 1) * float64(d.cfg.Jitter))

	if lost || d.bad {
		d.count.Lost++
		return
	}
	if corrupt {
		d.count.Corrupted++
		p[bit/8] ^= 1 << (bit % 8)
	}
	wait := d.cfg.Delay + jitter
	if reorder {
		d.count.Reordered++
		wait += d.cfg.Hold
	}
	d.send(f, wait)
	if duplicate {
		d.count.Duplicated++
		d.send(f, wait)
	}
}

// send delivers or schedules a packet. d.mu is held.
func (d *direction) send(f link.Frame, wait time.Duration) {
	p := f.Data
	if !d.timed {
		d.ready = append(d.ready, d.hold(f))
		return
	}
	if len(d.held) >= d.cfg.Limit {
		d.count.Overflowed++
		return
	}
	now := d.clock.Now()
	due := now
	if d.cfg.Rate > 0 {
		if d.free.Before(now) {
			d.free = now
		}
		if !d.enqueue(p, int(d.free.Sub(now).Seconds()*float64(d.cfg.Rate)/8)) {
			d.count.Overflowed++
			return
		}
		d.free = d.free.Add(time.Duration(float64(8*len(p)) / float64(d.cfg.Rate) * float64(time.Second)))
		due = d.free
	}
	h := d.hold(f)
	h.due = due.Add(wait)
	d.schedule(h)
}

// afterHeld calls f when the packets that are held now have been delivered. It does not call f if
// the direction is closed.
func (d *direction) afterHeld(f func()) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return
	}
	if len(d.held) > 0 {
		last := slices.MaxFunc(d.held, func(a, b *packet) int { return a.due.Compare(b.due) })
		d.schedule(&packet{due: last.due, then: f})
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	d.delivering.Lock() // the last ones may be under way
	defer d.delivering.Unlock()
	f()
}

// schedule adds a packet to those that wait. d.mu is held.
func (d *direction) schedule(h *packet) {
	d.order++
	h.order = d.order
	heap.Push(&d.held, h)
	first := d.held[0].order == d.order
	switch {
	case d.clock.Virtual() && d.timer == nil:
		d.timer = d.clock.AfterFunc(d.clock.Until(h.due), d.deliverOnTimer)
	case d.timer != nil && first:
		d.timer.Reset(d.clock.Until(h.due))
	case d.timer != nil:
	case !d.started:
		go d.run()
	case first:
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
	d.started = true
}

// flush delivers the packets that are not delayed.
func (d *direction) flush() error {
	d.mu.Lock()
	ready := d.ready
	d.ready = nil
	d.mu.Unlock()
	if len(ready) == 0 {
		return nil
	}
	frames := make([]link.Frame, 0, len(ready))
	for _, h := range ready {
		frames = append(frames, h.frame)
	}
	d.delivering.Lock()
	err := d.deliver(frames)
	d.delivering.Unlock()
	d.release(ready)
	return err
}

// maxBusyWait is the longest wait without a timer. Go's timers fire on whole milliseconds when the
// process is idle.
const maxBusyWait = time.Millisecond

// run delivers packets when they are due.
func (d *direction) run() {
	defer close(d.done)
	alarm, timer := d.clock.NewTimer(0)
	defer timer.Stop()
	var b batch
	for due := d.clock.Now(); d.await(due, alarm, timer); due = d.deliverDue(&b) {
	}
}

// deliverOnTimer delivers packets when they are due, on a clock other than the machine's.
func (d *direction) deliverOnTimer() {
	d.deliverDue(new(batch))
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.held) > 0 {
		d.timer.Reset(d.clock.Until(d.held[0].due))
	}
}

// batch is what is due at one time. It is reused.
type batch struct {
	packets []*packet
	frames  []link.Frame
	then    []func()
}

// deliverDue delivers the packets that are due, and returns when the next one is.
func (d *direction) deliverDue(b *batch) (due time.Time) {
	d.mu.Lock()
	now := d.clock.Now()
	b.packets, b.frames, b.then = b.packets[:0], b.frames[:0], b.then[:0]
	for len(d.held) > 0 && !d.held[0].due.After(now) {
		h := heap.Pop(&d.held).(*packet)
		if h.then != nil {
			b.then = append(b.then, h.then)
			continue
		}
		b.packets, b.frames = append(b.packets, h), append(b.frames, h.frame)
	}
	due = now.Add(time.Hour)
	if len(d.held) > 0 {
		due = d.held[0].due
	}
	d.mu.Unlock()
	if len(b.frames) > 0 {
		d.delivering.Lock()
		_ = d.deliver(b.frames) // no caller is left to return the error to
		d.delivering.Unlock()
		d.release(b.packets)
	}
	for _, f := range b.then {
		f()
	}
	return due
}

// await waits until due, or until a packet is due earlier. It returns false if the direction is
// closed.
func (d *direction) await(due time.Time, alarm <-chan time.Time, timer clock.Timer) bool {
	for now := d.clock.Now(); ; {
		left := due.Sub(now)
		if left <= 0 {
			break
		}
		if left < maxBusyWait {
			runtime.Gosched()
			before := now
			if now = d.clock.Now(); now != before { // always true, except in virtual time
				select {
				case <-d.stop:
					return false
				case <-d.wake:
					return true
				default:
				}
				continue
			}
		}
		timer.Reset(left)
		select {
		case <-d.stop:
			return false
		case <-d.wake:
			return true
		case <-alarm:
			return true
		}
	}
	select {
	case <-d.stop:
		return false
	default:
		return true
	}
}

func (d *direction) close() {
	d.mu.Lock()
	first, started := !d.closed, d.started
	d.closed = true
	d.held, d.ready, d.spare = nil, nil, nil
	d.mu.Unlock()
	if first {
		close(d.stop)
	}
	if d.timer != nil {
		d.timer.Stop()
	} else if started {
		<-d.done
	}
}

// packet is a packet in transit, or a function that is called when earlier ones have arrived.
type packet struct {
	due   time.Time
	order uint64
	frame link.Frame
	then  func()
}

// hold returns a copy of a packet. d.mu is held.
func (d *direction) hold(f link.Frame) *packet {
	h := new(packet)
	if n := len(d.spare); n > 0 {
		h, d.spare = d.spare[n-1], d.spare[:n-1]
	}
	f.Data = append(h.frame.Data[:0], f.Data...)
	h.frame = f
	return h
}

// release returns delivered packets to the free list.
func (d *direction) release(p []*packet) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.spare = append(d.spare, p...)
	}
}

// schedule is a heap of packets, ordered by the time that they are due.
type schedule []*packet

func (s schedule) Len() int { return len(s) }
func (s schedule) Less(i, j int) bool {
	return s[i].due.Before(s[j].due) || s[i].due.Equal(s[j].due) && s[i].order < s[j].order
}
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)   { *s = append(*s, x.(*packet)) }
func (s *schedule) Pop() any {
	old := *s
	x := old[len(old)-1]
	old[len(old)-1] = nil
	*s = old[:len(old)-1]
	return x
}
