package verbs

import (
	"sync"
	"sync/atomic"
)

// CQInitAttr has the options of CreateCQ (ibv_cq_init_attr_ex).
type CQInitAttr struct {
	Context    any          // for the application: CQ.Context
	Channel    *CompChannel // for completion events, or nil
	CompVector int          // must be 0
	Wait       Wait         // selects whether Poll makes the device progress
	Timestamps bool         // for Poller.CompletionTS and CompletionWallclock
	// Ready, if not nil, is a word that is 1 while Poll may return a completion or an error, and 0
	// otherwise. A program can thus detect an empty CQ without a call. It may be C memory, so that
	// C code in front of a Go program can read it. Only the CQ writes to it, until Close has
	// returned. Like Poll with WaitEvent, reading it does not make the device progress: see
	// Device.Progress.
	Ready *atomic.Uint32
}

// Wait selects whether Poll of an empty CQ makes the device progress. Poll then receives the
// packets that have arrived, and sends packets that were delayed to share a frame, without
// blocking. A program that polls in a loop has the lowest latency this way, because no other thread
// must be woken. Poll also yields the processor (sched_yield), so that other threads run. Over
// shared memory or through a hub, it sleeps for about 0.1 ms at a time when nothing has arrived for
// a millisecond.
//
// While a program polls, only its Polls make the device progress. The device makes progress by
// itself again when the program has not polled for one or two milliseconds. When the program sleeps
// in [CQ.Wait] or [CompChannel.GetEvent], the device does so immediately.
//
// For a goroutine that is locked to its thread, such as one called from C, yielding costs 10 to 30
// µs. The runtime lets another thread look for work, and then wakes the goroutine's thread. On a
// network in memory (package pipe), each Poll without progress yields; on other media, one in many.
// Such a goroutine should use WaitEvent, with which Poll never yields, and CQInitAttr.Ready.
type Wait uint8

const (
	// WaitAdaptive makes progress from the second consecutive empty Poll on, so that the Poll
	// between ReqNotify and GetEvent does not. Where completions arrive without Progress, as
	// from QPs of the same process, it does so only once in many empty Polls.
	WaitAdaptive Wait = iota
	// WaitEvent never makes progress. It is for programs that sleep in CQ.Wait or GetEvent, or that
	// poll memory and rarely call Poll. iWARP connections complete requests on goroutines of their
	// own; with few processors, bulk transfers are faster if the program sleeps meanwhile.
	WaitEvent
	// WaitPoll makes progress in every empty Poll, with the same exception as WaitAdaptive.
	WaitPoll
)

// CQ is a completion queue (ibv_cq).
//
// A completion that does not fit into the queue is lost, and the CQ stays overrun. The completions
// in it can still be polled, and then Poll fails with ErrCQOverrun. The device raises EventCQErr
// once. A QP whose completion is lost goes to ERR, with EventQPFatal (IBTA Vol 1 §11.6.3.2).
type CQ struct {
	dev     *Device
	channel *CompChannel
	context any
	wait    Wait

	// protected by dev.mu
	users int // send and receive queues that complete to this CQ
	dead  bool

	events eventCounts // asynchronous events

	pollReady *atomic.Uint32 // equal to ready
	progress  cqProgress

	// ownReady is the target of ready without CQInitAttr.Ready. It has its own cache line, so that
	// polling an empty CQ does not slow down the goroutines that add completions.
	_        [64]byte
	ownReady atomic.Uint32
	_        [60]byte

	// ready is 1 if Poll must lock mu, for a completion or an error. Goroutines that add
	// completions read this pointer, and those that poll read pollReady, so that they share no
	// cache line.
	ready      *atomic.Uint32
	mu         sync.Mutex    // after QP locks, before the channel's
	armed      atomic.Uint32 // armState; written under mu
	overrun    bool
	closed     bool
	head, n    int
	ring       []WC
	stamps     []stamp // of the completions in ring; nil without CQInitAttr.Timestamps
	moderation moderation
	waiters    *waiters // nil before the first Wait that sleeps
	stalled    *stalled // nil: completions are visible at once

	// protected by channel.mu
	next    *CQ // in the channel's list
	pending int // events in the channel
	unacked int // events that GetEvent returned, not yet acknowledged

	// Pads CQ to a multiple of the cache line size, so that ownReady's cache line is its own.
	_ [88]byte
}

type armState = uint32

const (
	disarmed armState = iota
	armedSolicited
	armedAny
)

// CreateCQ creates a completion queue for cqe completions. attr may be nil.
func (d *Device) CreateCQ(cqe int, attr *CQInitAttr) (*CQ, error) {
	if err := d.fault("create_cq"); err != nil {
		return nil, err
	}
	const op = "create CQ"
	if err := checkRange(op, "cqe", cqe, 1, d.attr.MaxCQE); err != nil {
		return nil, err
	}
	if attr == nil {
		attr = &CQInitAttr{}
	}
	ch := attr.Channel
	if attr.CompVector != 0 {
		return nil, Errorf(ErrInvalid, op, "CompVector %d: the device has only vector 0", attr.CompVector)
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
		return nil, Errorf(ErrClosed, op, "Channel is closed")
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
	if cq.ready = attr.Ready; cq.ready == nil {
		cq.ready = &cq.ownReady
	}
	cq.ready.Store(0)
	cq.pollReady = cq.ready
	return cq, nil
}

// Device returns the CQ's device.
func (cq *CQ) Device() *Device { return cq.dev }

// Context returns the Context that the CQ was created with.
func (cq *CQ) Context() any { return cq.context }

// Channel returns the completion channel, or nil.
func (cq *CQ) Channel() *CompChannel { return cq.channel }

// Cap returns the queue's capacity in completions.
func (cq *CQ) Cap() int {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	return len(cq.ring)
}

// Resize changes the queue's size to cqe completions (ibv_resize_cq), and keeps the completions in
// it. If these are more than cqe, Resize fails with ErrInvalid. Those of a stalled CQ count.
func (cq *CQ) Resize(cqe int) error {
	if err := cq.dev.fault("resize_cq"); err != nil {
		return err
	}
	const op = "resize CQ"
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if err := cq.check(op); err != nil {
		return err
	}
	least := max(cq.n, 1)
	if cq.stalled != nil {
		least = max(least, cq.n+len(cq.stalled.held))
	}
	if err := checkRange(op, "cqe", cqe, least, cq.dev.attr.MaxCQE); err != nil {
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

// Poll moves up to len(wcs) completions from the queue to wcs, oldest first. It returns their
// number, which is 0 when the queue is empty. The error is ErrClosed, or ErrCQOverrun when an
// overrun queue is empty.
//
// Poll of an empty CQ may make the device progress: see [Wait].
func (cq *CQ) Poll(wcs []WC) (int, error) {
	return cq.poll(wcs, nil)
}

// poll implements Poll, and Next of a Poller, which takes stamps.
func (cq *CQ) poll(wcs []WC, stamps []stamp) (int, error) {
	n, err := cq.take(wcs, stamps)
	if cq.wait == WaitEvent {
		return n, err // no poll makes progress, so none is counted
	}
	progress := false
	if n == 0 && err == nil && len(wcs) > 0 {
		progress = cq.wantsProgress()
		if progress && cq.dev.prov.Progress() {
			n, err = cq.take(wcs, stamps)
		}
		if n == 0 {
			cq.progress.pollEmpty()
		}
	}
	if n > 0 {
		cq.progress.pollFound(progress)
	}
	return n, err
}

// take removes up to len(wcs) completions, without making the device progress.
func (cq *CQ) take(wcs []WC, stamps []stamp) (int, error) {
	if cq.pollReady.Load() == 0 {
		return 0, nil
	}
	cq.mu.Lock() // not deferred, because this is in each message's path
	n := min(len(wcs), cq.n)
	if n == 0 {
		err := cq.check("poll CQ")
		if cq.n == 0 && err == nil {
			cq.ready.Store(0)
		}
		cq.mu.Unlock()
		return 0, err
	}
	if cq.dev.injection.Load() != nil {
		if err := cq.faultPoll(wcs, stamps != nil); err != nil {
			cq.mu.Unlock()
			return 0, err
		}
	}
	cq.pop(wcs[:n], stamps)
	if cq.n == 0 && !cq.overrun {
		cq.ready.Store(0)
	}
	cq.mu.Unlock()
	return n, nil
}

// faultPoll asks the Injector about a call that finds completions. A Poller's is its first Next,
// before which it has no completion of a QP.
//
//go:noinline // so that take stays small
func (cq *CQ) faultPoll(wcs []WC, ofPoller bool) error {
	if ofPoller && wcs[0].QPNum != 0 {
		return nil
	}
	return cq.dev.fault("poll_cq")
}

// wantsProgress reports whether an empty Poll calls Progress. The CQ's Wait is not WaitEvent.
func (cq *CQ) wantsProgress() bool {
	if cq.wait == WaitPoll {
		return cq.progress.due(1)
	}
	return cq.progress.due(2)
}

// pop moves the len(wcs) oldest completions to wcs, and their timestamps to stamps unless it is
// nil. The queue must have that many.
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

// dropQP removes the completions of a QP.
func (cq *CQ) dropQP(qpn uint32) {
	cq.dropHeld(qpn)
	cq.mu.Lock()
	defer cq.mu.Unlock()
	n := cq.n
	wcs, stamps := make([]WC, n), make([]stamp, n)
	cq.pop(wcs, stamps)
	cq.head = 0
	for i := range wcs {
		if wcs[i].QPNum == qpn {
			continue
		}
		cq.ring[cq.n] = wcs[i]
		if cq.stamps != nil {
			cq.stamps[cq.n] = stamps[i]
		}
		cq.n++
	}
	if cq.n == 0 && !cq.overrun {
		cq.ready.Store(0)
	}
}

func (cq *CQ) check(op string) error {
	switch {
	case cq.closed:
		return Errorf(ErrClosed, op, "the CQ is closed")
	case cq.overrun && cq.n == 0:
		return Errorf(ErrCQOverrun, op, "its %d entries were not polled in time, and later completions are lost", len(cq.ring))
	}
	return nil
}

// ReqNotify arms the CQ (ibv_req_notify_cq): its channel gets one event when the next completion is
// added. With solicitedOnly, only a failed completion counts, or one of a receive request whose
// sender set SendSolicited. Completions that are already in the queue cause no event, so poll once
// more after ReqNotify. When both kinds are requested, any completion causes the event.
func (cq *CQ) ReqNotify(solicitedOnly bool) error {
	if err := cq.dev.fault("req_notify_cq"); err != nil {
		return err
	}
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
		cq.ready.Store(1) // the next Poll must see completions whose push has not set ready yet
	}
	cq.progress.restart()
	was := cq.armed.Load()
	if was == disarmed {
		cq.moderation.count = 0
	}
	if !solicitedOnly {
		cq.armed.Store(armedAny)
	} else if was == disarmed {
		cq.armed.Store(armedSolicited)
	}
	return nil
}

// AckEvents acknowledges n events that GetEvent or TryGetEvent returned for the CQ
// (ibv_ack_cq_events).
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

// Close destroys the CQ (ibv_destroy_cq). It drops the events that GetEvent or TryGetEvent has not
// returned. It waits until the others are acknowledged, and also the asynchronous events that
// TryGetAsyncEvent returned. The error is ErrBusy while a QP or an SRQ uses the CQ, and ErrClosed
// after the first Close.
func (cq *CQ) Close() error {
	if err := cq.dev.fault("destroy_cq"); err != nil {
		return err
	}
	const op = "close CQ"
	d := cq.dev
	d.mu.Lock()
	if cq.dead || cq.users > 0 {
		defer d.mu.Unlock()
		if cq.dead {
			return Errorf(ErrClosed, op, "the CQ is already closed")
		}
		return Errorf(ErrBusy, op, "%d work queues of QPs use it", cq.users)
	}
	cq.dead = true
	d.mu.Unlock()

	cq.mu.Lock()
	cq.closed, cq.n = true, 0
	cq.armed.Store(disarmed)
	cq.ready.Store(1)
	cq.moderation.stop()
	if w := cq.waiters; w != nil && w.n > 0 {
		w.notifier.Notify()
	}
	cq.mu.Unlock()
	cq.closeStall()
	cq.mu.Lock()
	cq.n = 0 // moveHeld may have added one
	cq.mu.Unlock()
	if cq.channel != nil {
		cq.channel.removeCQ(cq)
	}
	d.events.discard(&cq.events)

	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs--
	if cq.channel != nil {
		cq.channel.cqs--
	}
	return nil
}

// push adds a completion, and generates an event if the CQ is armed for it. It returns false if the
// completion is lost.
func (cq *CQ) push(wc *WC, solicited bool) bool {
	kept, first := cq.add(wc, solicited)
	if first || cq.ready.Load() == 0 {
		cq.ready.Store(1) // after mu is unlocked, so that Poll does not wait for it
	}
	return kept
}

// add is the part of push that holds mu. It sets ready only if the completion causes an event or
// wakes a Wait. first reports whether the queue was empty.
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
	if cq.armedFor(wc, solicited) {
		cq.ready.Store(1)
		cq.requestEvent()
	}
	if w := cq.waiters; w != nil && w.n > 0 {
		cq.ready.Store(1)
		w.notifier.Notify()
	}
	cq.mu.Unlock()
	return kept, first
}

// armedFor reports whether the CQ is armed for a completion.
func (cq *CQ) armedFor(wc *WC, solicited bool) bool {
	switch cq.armed.Load() {
	case armedAny:
		return true
	case armedSolicited:
		return solicited || wc.Status != WCSuccess
	}
	return false
}
