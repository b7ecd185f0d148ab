package verbs

import (
	"sync"
	"time"
)

// stalled has the completions of a CQ that are not visible yet. All but moving is protected by
// CQ.mu.
type stalled struct {
	until time.Time
	timer Timer // calls endStall
	held  []lateWC
	lost  bool // a completion was lost that could not have fitted into the queue

	// Held while a completion moves from held to the queue; taken before CQ.mu.
	moving sync.Mutex
}

type lateWC struct {
	qp        *QP
	wc        WC
	solicited bool
}

// stall keeps completions that are added from now on invisible for a time. If the CQ is already
// stalled, the later end applies. It returns false if the CQ is closed.
func (cq *CQ) stall(d time.Duration) bool {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return false
	}
	until := cq.dev.clock.Now().Add(d)
	if cq.stalled == nil {
		cq.stalled = &stalled{until: until, timer: cq.dev.clock.AfterFunc(d, cq.endStall)}
	} else if until.After(cq.stalled.until) {
		cq.stalled.until = until
	}
	return true
}

// hold keeps a completion if the CQ is stalled. It is known at the end whether it fits into the
// queue, unless those that are held would fill it. kept is false if it is lost now. The QP is
// locked.
func (cq *CQ) hold(qp *QP, wc *WC, solicited bool) (isStalled, kept bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	s := cq.stalled
	switch {
	case s == nil:
		return false, false
	case len(s.held) < len(cq.ring) && !cq.overrun:
		s.held = append(s.held, lateWC{qp, *wc, solicited})
		return true, true
	}
	s.lost = true
	return true, false
}

// endStall adds the held completions, in their order, when the time is over.
func (cq *CQ) endStall() {
	for cq.moveHeld() {
		continue
	}
	if cq.channel != nil {
		cq.channel.report()
	}
}

// moveHeld adds the oldest held completion, if it is time. It returns false if there is none: the
// CQ is no longer stalled then.
func (cq *CQ) moveHeld() bool {
	cq.mu.Lock()
	s := cq.stalled // only moveHeld ends the stall
	cq.mu.Unlock()
	s.moving.Lock()
	h, ok := cq.takeHeld(s)
	kept := !ok || cq.push(&h.wc, h.solicited)
	s.moving.Unlock() // before the QP is locked: see dropQP
	if !kept {
		h.qp.lock()
		h.qp.cqOverrun = true
		h.qp.unlock()
	}
	return ok
}

// takeHeld removes the oldest held completion. Without one it ends the stall, or continues it if it
// is not over. moving is held.
func (cq *CQ) takeHeld(s *stalled) (h lateWC, ok bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return h, false
	}
	if rest := cq.dev.clock.Until(s.until); rest > 0 {
		s.timer = cq.dev.clock.AfterFunc(rest, cq.endStall)
		return h, false
	}
	if len(s.held) > 0 {
		h, s.held = s.held[0], s.held[1:]
		return h, true
	}
	cq.stalled = nil
	if s.lost && !cq.overrun {
		cq.fail()
	}
	return h, false
}

// fail makes the CQ overrun, as a completion that is lost does. mu is held, and the caller reports
// to the channel afterwards.
func (cq *CQ) fail() {
	cq.overrun = true
	cq.dev.events.add(AsyncEvent{Type: EventCQErr, CQ: cq})
	cq.ready.Store(1)
	if cq.armed.Load() != disarmed {
		cq.requestEvent()
	}
	if w := cq.waiters; w != nil && w.n > 0 {
		w.notifier.Notify()
	}
}

// closeStall ends a stall of a CQ that is closed. No completion is added when it returns.
func (cq *CQ) closeStall() {
	cq.mu.Lock()
	s := cq.stalled
	cq.mu.Unlock()
	if s != nil {
		s.timer.Stop()
		s.moving.Lock()
		//lint:ignore SA2001 it is enough to have had the lock after moveHeld
		s.moving.Unlock()
	}
}

// dropHeld removes the held completions of a QP, which is locked: none is added later.
func (cq *CQ) dropHeld(qpn uint32) {
	cq.mu.Lock()
	s := cq.stalled
	cq.mu.Unlock()
	if s == nil {
		return
	}
	s.moving.Lock() // otherwise one of them may be on its way
	defer s.moving.Unlock()
	cq.mu.Lock()
	defer cq.mu.Unlock()
	kept := s.held[:0]
	for _, h := range s.held {
		if h.wc.QPNum != qpn {
			kept = append(kept, h)
		}
	}
	s.held = kept
}
