package verbs

import (
	"sync"
	"sync/atomic"
)

// CQInitAttr are the choices of CreateCQ.
type CQInitAttr struct {
	Context    any          // for the application: CQ.Context
	Channel    *CompChannel // where completion events go, or nil
	CompVector int          // 0
	Wait       Wait         // what Poll does when the queue is empty
	Timestamps bool         // keep what Poller.CompletionTS and CompletionWallclock read
}

// Wait says whether polling a CQ that is empty drives the device: whether Poll receives what has arrived, and sends what
// waited for company, itself and without waiting. A program that polls so in a loop has the least latency, because no
// other thread must be woken; to let the others run, Poll then offers its processor to them (sched_yield). While it
// polls, the device does nothing by itself, except that it takes over when the program has not polled for a millisecond
// or two; when it sleeps in [CompChannel.GetEvent], the device works by itself at once.
type Wait uint8

const (
	// WaitAdaptive drives from the second empty Poll in a row on, so that the one between requesting a notification and
	// sleeping does not; but where completions come by themselves, as they do from QPs of the same process, only now and
	// then.
	WaitAdaptive Wait = iota
	// WaitEvent never drives: for programs that sleep, or that look at memory and poll seldom. Completions of iWARP QPs come
	// from a goroutine that each connection has, so that where processors are few sleeping moves more bulk data.
	WaitEvent
	// WaitPoll does so from the first on, and whatever is requested.
	WaitPoll
)

// CQ is a completion queue (ibv_cq).
//
// A completion that finds the queue full is lost, and the CQ is overrun for good: the completions already in it can
// still be polled, then Poll fails with ErrCQOverrun. The device reports EventCQErr once. A QP whose completion is lost
// goes to ERR, with EventQPFatal (IBTA Vol 1 §11.6.3.2).
type CQ struct {
	dev     *Device
	channel *CompChannel
	context any
	wait    Wait

	// guarded by dev.mu
	users int // send and receive queues
	dead  bool

	empty atomic.Uint32 // Polls in a row that found nothing
	alone atomic.Bool   // what ended the last such row did not come of driving the device

	// news tells whoever polls that there is something to lock mu for: a completion, or an error. It has a cache line
	// of its own, so that polling an empty CQ takes nothing away from those who fill it.
	_    [64]byte
	news atomic.Bool
	_    [63]byte

	mu        sync.Mutex    // after QP locks, before the channel's
	armed     atomic.Uint32 // armState; written under mu
	overrun   bool
	destroyed bool
	head, n   int
	ring      []WC
	stamps    []stamp // of the completions in ring, if they are wanted
	events    moderation

	// guarded by channel.mu
	next    *CQ // in the channel's list
	pending int // events in the channel
	unacked int // events taken out and not acknowledged

	_ [56]byte // to a multiple of cache lines, so that those above begin where lines do
}

type armState = uint32

const (
	disarmed armState = iota
	armedSolicited
	armedAny
)

// CreateCQ makes a completion queue for cqe completions. attr may be nil.
func (d *Device) CreateCQ(cqe int, attr *CQInitAttr) (*CQ, error) {
	const op = "create CQ"
	if err := checkRange(op, "cqe", cqe, 1, d.attr.MaxCQE); err != nil {
		return nil, err
	}
	if attr == nil {
		attr = &CQInitAttr{}
	}
	ch := attr.Channel
	if attr.CompVector != 0 {
		return nil, Errorf(ErrInvalid, op, "CompVector %d: the device has only 0", attr.CompVector)
	}
	if attr.Wait > WaitPoll {
		return nil, Errorf(ErrInvalid, op, "Wait %d: at most %d", attr.Wait, WaitPoll)
	}
	if ch != nil && ch.dev != d {
		return nil, Errorf(ErrInvalid, op, "Channel is of another device")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if ch != nil && ch.dead {
		return nil, Errorf(ErrDestroyed, op, "Channel is destroyed")
	}
	if err := d.reserve(op, &d.cqs, d.attr.MaxCQ, "MaxCQ"); err != nil {
		return nil, err
	}
	if ch != nil {
		ch.cqs++
	}
	cq := &CQ{dev: d, channel: ch, context: attr.Context, wait: attr.Wait, ring: make([]WC, cqe)}
	if attr.Timestamps {
		cq.stamps = make([]stamp, cqe)
	}
	return cq, nil
}

// Device is the device that the CQ is on.
func (cq *CQ) Device() *Device { return cq.dev }

// Context is what CreateCQ was given.
func (cq *CQ) Context() any { return cq.context }

// Channel is the completion channel, or nil.
func (cq *CQ) Channel() *CompChannel { return cq.channel }

// Cap is the number of completions that the queue holds.
func (cq *CQ) Cap() int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return len(cq.ring)
}

// Resize makes the queue hold cqe completions (ibv_resize_cq). What is in it stays; ErrInvalid if that is more.
func (cq *CQ) Resize(cqe int) error {
	const op = "resize CQ"
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if err := cq.check(op); err != nil {
		return err
	}
	if err := checkRange(op, "cqe", cqe, max(cq.n, 1), cq.dev.attr.MaxCQE); err != nil {
		return err
	}
	n := cq.n
	ring := make([]WC, cqe)
	var stamps []stamp
	if cq.stamps != nil {
		stamps = make([]stamp, cqe)
	}
	cq.pop(ring[:n], stamps)
	cq.ring, cq.stamps, cq.head, cq.n = ring, stamps, 0, n
	return nil
}

// Poll takes up to len(wcs) completions out of the queue, oldest first, and returns how many; 0 when it is empty. The
// error is ErrCQOverrun (only when empty) or ErrDestroyed.
//
// An empty CQ may drive the device: see [Wait].
func (cq *CQ) Poll(wcs []WC) (int, error) {
	return cq.poll(wcs, nil)
}

func (cq *CQ) poll(wcs []WC, stamps []stamp) (int, error) {
	n, drive, err := cq.take(wcs, stamps)
	if drive && cq.dev.prov.Progress() {
		n, _, err = cq.take(wcs, stamps)
	}
	if n > 0 {
		cq.found(drive)
	}
	return n, err
}

func (cq *CQ) take(wcs []WC, stamps []stamp) (n int, drive bool, err error) {
	if !cq.news.Load() {
		return 0, cq.drives(len(wcs)), nil
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	n = min(len(wcs), cq.n)
	if n == 0 {
		err = cq.check("poll CQ")
		cq.news.Store(cq.n > 0 || err != nil)
		return 0, err == nil && cq.drives(len(wcs)), err
	}
	cq.pop(wcs[:n], stamps)
	if cq.n == 0 && !cq.overrun {
		cq.news.Store(false)
	}
	return n, false, nil
}

// looks is how many empty Polls there are to one that drives the device, where completions come without that.
const looks = 128

// drives counts a Poll that found nothing, and tells whether it is to drive the device.
func (cq *CQ) drives(room int) bool {
	if room == 0 {
		return false
	}
	k := cq.empty.Add(1)
	if k%looks != 0 && cq.alone.Load() {
		return false
	}
	return cq.wait == WaitPoll || cq.wait == WaitAdaptive && k > 1
}

// found ends a row of Polls that found nothing.
func (cq *CQ) found(driven bool) {
	if cq.empty.Load() > 0 {
		cq.empty.Store(0)
		if cq.alone.Load() == driven {
			cq.alone.Store(!driven)
		}
	}
}

// pop takes len(wcs) completions, which are there, and their stamps where both sides have any.
func (cq *CQ) pop(wcs []WC, stamps []stamp) {
	n := len(wcs)
	first := copy(wcs, cq.ring[cq.head:])
	copy(wcs[first:], cq.ring)
	if stamps != nil && cq.stamps != nil {
		first := copy(stamps[:n], cq.stamps[cq.head:])
		copy(stamps[first:n], cq.stamps)
	}
	if cq.head += n; cq.head >= len(cq.ring) {
		cq.head -= len(cq.ring)
	}
	cq.n -= n
}

func (cq *CQ) check(op string) error {
	switch {
	case cq.destroyed:
		return Errorf(ErrDestroyed, op, "the CQ is destroyed")
	case cq.overrun && cq.n == 0:
		return Errorf(ErrCQOverrun, op, "more than its %d completions came unpolled: some are lost", len(cq.ring))
	}
	return nil
}

// RequestNotify asks for one event in the CQ's channel when the next completion is added, or, with solicitedOnly, the
// next receive completion whose sender asked for an event or the next that failed. Completions already in the queue
// do not count, so poll once more after arming. A request for any completion outranks one for solicited.
func (cq *CQ) RequestNotify(solicitedOnly bool) error {
	const op = "request notify"
	if cq.channel == nil {
		return Errorf(ErrInvalid, op, "the CQ has no completion channel")
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if err := cq.check(op); err != nil {
		return err
	}
	if cq.n > 0 {
		cq.news.Store(true) // the poll that follows must not come before push has said so
	}
	cq.empty.Store(0) // begins a new row
	was := cq.armed.Load()
	if was == disarmed {
		cq.events.count = 0
	}
	if !solicitedOnly {
		cq.armed.Store(armedAny)
	} else if was == disarmed {
		cq.armed.Store(armedSolicited)
	}
	return nil
}

// AckEvents acknowledges n events that GetEvent returned for the CQ.
func (cq *CQ) AckEvents(n int) error {
	const op = "acknowledge events"
	ch := cq.channel
	if ch == nil {
		return Errorf(ErrInvalid, op, "the CQ has no completion channel")
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if err := checkRange(op, "n", n, 0, cq.unacked); err != nil {
		return err
	}
	if cq.unacked -= n; cq.unacked == 0 {
		ch.acked.Broadcast()
	}
	return nil
}

// Destroy ends the CQ. ErrBusy while a QP uses it. It drops events not yet taken and waits until those taken are
// acknowledged.
func (cq *CQ) Destroy() error {
	const op = "destroy CQ"
	d := cq.dev
	d.mu.Lock()
	if cq.dead || cq.users > 0 {
		defer d.mu.Unlock()
		if cq.dead {
			return Errorf(ErrDestroyed, op, "the CQ is destroyed already")
		}
		return Errorf(ErrBusy, op, "%d work queues of QPs use it", cq.users)
	}
	cq.dead = true
	d.mu.Unlock()

	cq.mu.Lock()
	cq.destroyed, cq.n = true, 0
	cq.armed.Store(disarmed)
	cq.news.Store(true)
	cq.events.stop()
	cq.mu.Unlock()
	if cq.channel != nil {
		cq.channel.forget(cq)
	}
	d.events.forget(func(e *AsyncEvent) bool { return e.CQ == cq })

	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs--
	if cq.channel != nil {
		cq.channel.cqs--
	}
	return nil
}

// push adds a completion, and an event if one is due; false if the completion is lost.
func (cq *CQ) push(wc *WC, solicited bool) bool {
	kept, first := cq.add(wc, solicited)
	if first || !cq.news.Load() {
		cq.news.Store(true) // not sooner, for who polls to find mu free
	}
	return kept
}

// add is push but for news, which it leaves unchanged unless an event is made.
func (cq *CQ) add(wc *WC, solicited bool) (kept, first bool) {
	cq.mu.Lock()
	kept = cq.n < len(cq.ring) && !cq.overrun
	switch {
	case kept:
		i := cq.head + cq.n
		if i >= len(cq.ring) {
			i -= len(cq.ring)
		}
		cq.ring[i] = *wc
		if cq.stamps != nil {
			cq.stamps[i] = cq.dev.stamp()
		}
		first = cq.n == 0
		cq.n++
	case !cq.overrun:
		cq.overrun = true
		cq.dev.events.add(AsyncEvent{Type: EventCQErr, CQ: cq})
	}
	if armed := cq.armed.Load(); armed == armedAny || armed == armedSolicited && (solicited || wc.Status != WCSuccess) {
		cq.news.Store(true)
		cq.eventDue()
	}
	cq.mu.Unlock()
	return kept, first
}
