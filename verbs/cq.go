package verbs

import "sync"

// CQInitAttr are the choices of CreateCQ.
type CQInitAttr struct {
	Context    any          // for the application: CQ.Context
	Channel    *CompChannel // where completion events go, or nil
	CompVector int          // 0
}

// CQ is a completion queue (ibv_cq).
//
// A completion that finds the queue full is lost, and the CQ is overrun for good: the completions already in it can
// still be polled, then Poll fails with ErrCQOverrun. The device reports EventCQErr once. QPs go on.
type CQ struct {
	dev     *Device
	channel *CompChannel
	context any

	// guarded by dev.mu
	users int // send and receive queues
	dead  bool

	mu        sync.Mutex // after QP locks, before the channel's
	ring      []WC
	head, n   int
	armed     armState
	overrun   bool
	destroyed bool

	// guarded by channel.mu
	next    *CQ // in the channel's list
	pending int // events in the channel
	unacked int // events taken out and not acknowledged
}

type armState uint8

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
	return &CQ{dev: d, channel: ch, context: attr.Context, ring: make([]WC, cqe)}, nil
}

// Device is the device that the CQ is on.
func (cq *CQ) Device() *Device { return cq.dev }

// Context is what CreateCQ was given.
func (cq *CQ) Context() any { return cq.context }

// Channel is the completion channel, or nil.
func (cq *CQ) Channel() *CompChannel { return cq.channel }

// Cap is the number of completions that the queue holds.
func (cq *CQ) Cap() int { return len(cq.ring) }

// Poll takes up to len(wcs) completions out of the queue, oldest first, and returns how many; 0 when it is empty. The
// error is ErrCQOverrun (only when empty) or ErrDestroyed.
func (cq *CQ) Poll(wcs []WC) (int, error) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	n := min(len(wcs), cq.n)
	if n == 0 {
		return 0, cq.check("poll CQ")
	}
	first := copy(wcs[:n], cq.ring[cq.head:])
	copy(wcs[first:n], cq.ring)
	if cq.head += n; cq.head >= len(cq.ring) {
		cq.head -= len(cq.ring)
	}
	cq.n -= n
	return n, nil
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
	if !solicitedOnly {
		cq.armed = armedAny
	} else if cq.armed == disarmed {
		cq.armed = armedSolicited
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

// push adds a completion, and an event if one is due.
func (cq *CQ) push(wc *WC, solicited bool) {
	cq.mu.Lock()
	switch {
	case cq.n < len(cq.ring):
		i := cq.head + cq.n
		if i >= len(cq.ring) {
			i -= len(cq.ring)
		}
		cq.ring[i] = *wc
		cq.n++
	case !cq.overrun:
		cq.overrun = true
		cq.dev.events.add(AsyncEvent{Type: EventCQErr, CQ: cq})
	}
	if cq.armed == armedAny || cq.armed == armedSolicited && (solicited || wc.Status != WCSuccess) {
		cq.armed = disarmed
		cq.channel.notify(cq)
	}
	cq.mu.Unlock()
}
