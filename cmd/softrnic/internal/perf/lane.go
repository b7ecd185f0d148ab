package perf

import (
	"context"
	"errors"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// rdmaLane has the QPs of one goroutine and the CQ that they share.
type rdmaLane struct {
	side    *rdma
	cq      *completion.Waiter
	qps     []*queuePair
	wcs     []verbs.WC
	metered *meter

	phase   *phase
	ctx     context.Context // phase.untilSent, then phase.ctx
	flushed int             // completed flushes
}

func (l *rdmaLane) meter() *meter { return l.metered }

func (l *rdmaLane) reset() { l.metered = newMeter(l.side.plan) }

func (l *rdmaLane) sent(counts []int64) {
	for _, q := range l.qps {
		counts[q.index] = q.posted
	}
}

func (l *rdmaLane) done() {}

func (l *rdmaLane) over(peerSent []int64) error {
	if !l.side.plan.Verify {
		return nil
	}
	for _, q := range l.qps {
		n := peerSent[q.index]
		if l.side.plan.Metric == metricLat && l.side.plan.Op == opWrite {
			n = q.posted // as many as sent in the other direction
		}
		if err := q.verifyMemory(n); err != nil {
			return err
		}
	}
	return nil
}

func (l *rdmaLane) run(phase *phase) error {
	l.phase, l.ctx = phase, phase.untilSent
	plan, client := l.side.plan, l.side.client
	switch {
	case plan.Metric == metricLat && client:
		if err := l.ping(); err != nil {
			return err
		}
		return phase.sent()
	case plan.Metric == metricLat && plan.Op == opSend, plan.Metric == metricLat && plan.Op == opWrite:
		if err := phase.sent(); err != nil { // the error ends the phase, not the caller
			return err
		}
		return l.pong()
	case plan.Metric != metricLat && (client || plan.Bidirectional):
		if err := l.send(); err != nil {
			return err
		}
	}
	if err := phase.sent(); err != nil {
		return err
	}
	return l.receive()
}

// wait waits for a completion, or until the peer has announced its number of messages.
func (l *rdmaLane) wait() error {
	n, err := l.cq.Wait(l.ctx, l.wcs)
	if err != nil && errors.Is(err, context.Canceled) && l.ctx != l.phase.ctx && l.phase.ctx.Err() == nil {
		l.ctx = l.phase.ctx // the peer has announced it
		return nil
	}
	if err != nil {
		return err
	}
	return l.take(n)
}

// take handles n completions.
func (l *rdmaLane) take(n int) error {
	messages := int64(0)
	for i := range l.wcs[:n] {
		wc := &l.wcs[i]
		q := l.qps[wc.WRID>>indexShift&(1<<(kindShift-indexShift)-1)]
		var err error
		switch wc.WRID >> kindShift {
		case messageSent:
			var done int64
			done, err = q.complete(wc.WRID & countMask)
			messages += done
		case flushed:
			l.flushed++
		case received:
			err = q.receive(wc)
		}
		if err != nil {
			return err
		}
	}
	if messages > 0 && l.metered.latency == nil {
		l.metered.add(messages)
	}
	return nil
}

// send keeps all QPs busy for the phase's number of messages or duration, and receives meanwhile.
// It reads the clock at completions, not for each message.
func (l *rdmaLane) send() error {
	for _, q := range l.qps {
		q.begin(l.phase.iters)
	}
	l.metered.start()
	for idle := 0; ; {
		stop := l.phase.iters == 0 && l.metered.now >= l.phase.duration
		idle = 0
		for _, q := range l.qps {
			for n := 1; n > 0; {
				var err error
				if n, err = q.post(stop); err != nil {
					return err
				}
			}
			if q.idle() {
				idle++
			}
		}
		if idle == len(l.qps) {
			break
		}
		if err := l.wait(); err != nil {
			return err
		}
	}
	if err := l.flush(); err != nil {
		return err
	}
	l.metered.stop()
	return nil
}

// flush waits until all messages have arrived, if completions do not guarantee that.
func (l *rdmaLane) flush() error {
	plan := l.side.plan
	if plan.Over != OverIWARP || plan.Op != opSend && plan.Op != opWrite {
		return nil
	}
	return l.flushAll()
}

func (l *rdmaLane) flushAll() error {
	l.flushed = 0
	for _, q := range l.qps {
		if err := q.flush(); err != nil {
			return err
		}
	}
	for l.flushed < len(l.qps) {
		if err := l.wait(); err != nil {
			return err
		}
	}
	return nil
}

// receive waits until all messages of the peer have arrived, if the operation allows it.
func (l *rdmaLane) receive() error {
	if l.side.plan.Op != opSend || l.side.plan.Metric == metricLat || l.side.client && !l.side.plan.Bidirectional {
		return nil
	}
	for !l.received() {
		if err := l.wait(); err != nil {
			return err
		}
	}
	return nil
}

// received reports whether the peer has announced its number of messages and all have arrived.
func (l *rdmaLane) received() bool {
	counts := l.phase.peerSent.Load()
	if counts == nil {
		return false
	}
	for _, q := range l.qps {
		if q.received < (*counts)[q.index] {
			return false
		}
	}
	return true
}

// ping exchanges single messages and records the time of each exchange.
func (l *rdmaLane) ping() error {
	q := l.qps[0]
	q.begin(0)
	l.metered.start()
	for first, last := q.posted, l.metered.elapsed(); ; {
		if l.phase.iters > 0 && q.posted-first == l.phase.iters || l.phase.iters == 0 && last >= l.phase.duration {
			l.metered.stop()
			// When this has completed on both sides, the whole message whose last byte has changed has
			// arrived.
			if l.side.plan.onePlace() {
				return l.flushAll()
			}
			return nil
		}
		begin := last
		var err error
		switch l.side.plan.Op {
		case opSend:
			if err = l.sendOne(q); err == nil {
				err = l.awaitMessage(q)
			}
		case opWrite:
			q.mark()
			if err = l.sendOne(q); err == nil {
				err = l.awaitByte(q)
			}
		default:
			err = l.sendOne(q)
		}
		if err != nil {
			return err
		}
		last = l.metered.elapsed()
		l.metered.record(last - begin)
	}
}

// pong answers each message with a message.
func (l *rdmaLane) pong() error {
	q := l.qps[0]
	q.begin(0)
	for {
		var err error
		if l.side.plan.Op == opWrite {
			err = l.awaitByte(q)
		} else {
			err = l.awaitMessage(q)
		}
		if counts := l.phase.peerSent.Load(); err == nil && counts != nil && q.posted == (*counts)[0] {
			return nil
		}
		if err == nil {
			if l.side.plan.Op == opWrite {
				q.mark()
			}
			err = l.sendOne(q)
		}
		if err != nil {
			return err
		}
	}
}

// sendOne posts one message and waits until it is complete.
func (l *rdmaLane) sendOne(q *queuePair) error {
	q.closed, q.credits = false, 1
	if _, err := q.post(false); err != nil {
		return err
	}
	for q.completed < q.posted {
		if err := l.wait(); err != nil {
			return err
		}
	}
	return nil
}

// expected reports whether the peer may still send: pings until it has announced their number, and
// a pong for each ping.
func (l *rdmaLane) expected(q *queuePair) bool {
	counts := l.phase.peerSent.Load()
	return l.side.client || counts == nil || q.posted < (*counts)[0]
}

// awaitMessage waits for the SEND that answers or precedes the last one sent.
func (l *rdmaLane) awaitMessage(q *queuePair) error {
	want := q.posted
	if !l.side.client {
		want++
	}
	for q.received < want && l.expected(q) {
		if err := l.wait(); err != nil {
			return err
		}
	}
	return nil
}

// awaitByte is awaitMessage for WRITEs: it polls the memory.
func (l *rdmaLane) awaitByte(q *queuePair) error {
	want := byte(q.posted)
	if !l.side.client {
		want++
	}
	last := q.slot(0)[q.plan.Size-1:]
	for spins := 0; peek(last) != want; spins++ {
		n, err := l.cq.Poll(l.wcs) // the device may only receive when polled
		if err == nil {
			err = l.take(n)
		}
		if err == nil && spins%256 == 0 {
			if !l.expected(q) {
				return nil
			}
			err = l.phase.ctx.Err()
		}
		if err != nil {
			return err
		}
		relax(spins, l.side.plan.Wait)
	}
	return nil
}
