package verbs

import "time"

// stalled has the completions of a CQ that are not visible yet, protected by CQ.mu.
type stalled struct {
	until time.Time
	held  []lateWC
	lost  bool // a completion did not fit
	// Not nil while endStall adds the completions; closed when it has.
	adding chan struct{}
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
		cq.stalled = &stalled{until: until}
		cq.dev.clock.AfterFunc(d, cq.endStall)
	} else if until.After(cq.stalled.until) {
		cq.stalled.until = until
	}
	return true
}

// hold keeps a completion if the CQ is stalled. kept is false if the completion is lost, because it
// would not fit into the queue. The QP is locked.
func (cq *CQ) hold(qp *QP, wc *WC, solicited bool) (isStalled, kept bool) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	s := cq.stalled
	switch {
	case s == nil:
		return false, false
	case cq.n+len(s.held) < len(cq.ring) && !cq.overrun:
		s.held = append(s.held, lateWC{qp, *wc, solicited})
		return true, true
	}
	s.lost = true
	return true, false
}

// endStall adds the held completions, in their order, when the time is over.
func (cq *CQ) endStall() {
	for {
		cq.mu.Lock()
		s := cq.stalled
		if rest := cq.dev.clock.Until(s.until); rest > 0 && !cq.closed {
			if s.adding != nil {
				close(s.adding)
				s.adding = nil
			}
			cq.dev.clock.AfterFunc(rest, cq.endStall)
			cq.mu.Unlock()
			return
		}
		held := s.held
		s.held = nil
		if len(held) == 0 || cq.closed {
			if s.lost && !cq.overrun && !cq.closed {
				cq.overrun = true
				cq.dev.events.add(AsyncEvent{Type: EventCQErr, CQ: cq})
				cq.ready.Store(1)
			}
			cq.stalled = nil
			cq.mu.Unlock()
			if s.adding != nil {
				close(s.adding)
			}
			break
		}
		if s.adding == nil {
			s.adding = make(chan struct{})
		}
		cq.mu.Unlock()
		for i := range held {
			h := &held[i]
			if !cq.push(&h.wc, h.solicited) {
				h.qp.lock()
				h.qp.cqOverrun = true
				h.qp.unlock()
			}
		}
	}
	if cq.channel != nil {
		cq.channel.report()
	}
}

// waitStall waits until endStall no longer adds completions. The CQ is closed.
func (cq *CQ) waitStall() {
	cq.mu.Lock()
	var adding chan struct{}
	if cq.stalled != nil {
		adding = cq.stalled.adding
	}
	cq.mu.Unlock()
	if adding != nil {
		<-adding
	}
}

// dropHeld removes the held completions of a QP. mu is held.
func (cq *CQ) dropHeld(qpn uint32) {
	if s := cq.stalled; s != nil {
		kept := s.held[:0]
		for _, h := range s.held {
			if h.wc.QPNum != qpn {
				kept = append(kept, h)
			}
		}
		s.held = kept
	}
}
