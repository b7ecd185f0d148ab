// Package send is the send state of a reliable connection: the next packet of a work request, the
// packets in flight, losses and timeouts. It knows PSNs, packets and time, but no verbs, memory or
// network. Its owner, the requester, builds the packets that it selects, and reports packets that
// arrive as events. (IBTA Vol 1 §9.7.3, §9.7.5, §9.7.6, §9.9.2)
//
// Queries have no side effects: Next is the next step, Deadline the time of the alarm. Events
// report changes. A request is posted (Post), a burst of packets is sent (Sent), an acknowledgement
// or a response arrives (OnAck, OnSequenceNAK, OnAnswer …), the alarm goes off (OnAlarm), or a
// message is moved without packets (MovedDirectly, MovedPart). The Outcome of an event tells the
// owner how to act.
//
// A State has no lock of its own. The owner's lock protects it.
//
// Each concern has its own file, and each field is written only in the file that declares it. In
// order: State handles the events (state.go, next.go, acknowledge.go, trimmed.go, selective.go,
// retransmit.go).
// It consists of queue.go, the requests and the cursor; flight.go, the PSNs in flight; window.go
// and congestion.go, the window, and delay.go and basertt.go, its control by delay; scoreboard.go
// and loss.go, the missing packets; ackfreq.go, when to request an acknowledgement; credits.go,
// end-to-end flow control; reads.go, outstanding READs; rtt.go and rttsamples.go, the round-trip
// time; lateness.go, what to allow for processes that are scheduled late; alarm.go, probe.go and
// retry.go, timeouts; cork.go, requests that may wait to share a frame; mode.go, the mode of
// retransmission; and trace.go, trace events.
package send

import (
	"math/bits"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// State is the send state of one QP. Init must be called once, and Begin for each connection.
type State struct {
	queue      queue
	flight     flight
	mtu        uint32 // bytes of payload in a full packet
	window     window
	acks       ackFrequency
	credits    credits
	retries    retries
	mode       mode
	reads      reads
	board      board
	rtt        rtt
	rttSamples *rttSamples // nil unless the congestion controller samples round trips
	alarm      alarm
	probe      probe
	cork       cork
	limits     Limits
	env        *Env
}

// Env has the functions that a State needs from its owner. Several States may share an Env that
// does not trace.
type Env struct {
	Clock Clock
	// Prompt says that neither the timers nor the peers are ever scheduled late, as in a simulation.
	// See Allowance.
	Prompt bool
	// Answers is how late answers are, learned by all States of the device.
	Answers *LateAnswers
	// Trace receives the events of the State; nil if there is no tracing. The owner adds the time
	// and the QP, which a State does not know.
	Trace func(trace.Event)
}

// Clock returns a monotonic time since some start. 0 means never.
type Clock func() time.Duration

// Limits are limits from the QP's attributes. They may change while the QP is connected.
type Limits struct {
	Retries    uint8         // timeouts and sequence NAKs without progress
	RNRRetries uint8         // RNR NAKs without progress; 7 is no limit
	MaxReads   uint8         // outstanding READs and atomics
	Timeout    time.Duration // retransmission timeout; 0 is none
}

// Connection is the set of attributes of a QP that enters RTS.
type Connection struct {
	PSN uint32 // of the first packet
	MTU uint32 // bytes of payload in a full packet
	Path
}

// Path is the network path of a connection.
type Path struct {
	Window uint32 // packets in flight at most: a power of two
	// Number of PSNs from the oldest missing one on, whose packets the peer keeps. None are sent
	// after them. A power of two, at least Window.
	Span       uint32
	Batch      uint32 // full packets in one frame of the link
	Congestion CongestionController
}

// Init sets the environment and the largest number of requests, at least one. It is called once.
func (s *State) Init(requests int, env *Env) {
	s.queue.init(1 << bits.Len(uint(requests-1)))
	s.env = env
	s.mode.on(onFailure) // nothing is sent before Begin
}

// Begin initializes the State when the QP enters RTS.
func (s *State) Begin(c *Connection) {
	s.Stop()
	s.queue.reset()
	s.flight.init(c.PSN)
	s.SetPath(&c.Path)
	s.acks.init(c.PSN)
	s.credits.reset()
	s.reads.reset()
	s.retries.reset()
	s.cork.reset()
	s.mode.init()
	s.mtu = c.MTU
	s.traceBegin()
}

// SetPath changes the path. Nothing learned from the old path applies to the new one.
func (s *State) SetPath(p *Path) {
	s.window.init(p)
	s.rtt.reset()
	s.rttSamples = nil
	if p.Congestion.Params().MeasureRTT {
		s.rttSamples = new(rttSamples)
	}
}

// Stop ends sending, when the QP has failed or is reset.
func (s *State) Stop() {
	s.change(onFailure)
	s.board.close()
	s.alarm.reset()
	s.probe.cancel()
}

// Reset stops the State, and clears all requests and limits.
func (s *State) Reset() {
	s.Stop()
	s.limits = Limits{}
	s.queue.reset()
	s.flight.init(0)
	s.reads.reset()
	s.cork.reset()
}

// SetLimits changes the limits from the QP's attributes.
func (s *State) SetLimits(l Limits) { s.limits = l }

// Limits returns the limits from the QP's attributes.
func (s *State) Limits() Limits { return s.limits }

// Mode returns the current mode.
func (s *State) Mode() Mode { return s.mode.now }

// NextPSN returns the first PSN of the next new request.
func (s *State) NextPSN() uint32 { return s.flight.next }

// Idle reports whether nothing is in flight.
func (s *State) Idle() bool { return s.flight.idle() }

// SentBehind reports whether a packet with PSN psn or a later one was ever sent.
func (s *State) SentBehind(psn uint32) bool { return wire.PSNDiff(psn, s.flight.max) < 0 }

// Begun reports whether the oldest request is started.
func (s *State) Begun() bool { return s.queue.begun() }

// Posted returns the number of requests that are posted and not complete.
func (s *State) Posted() int { return int(s.queue.end - s.queue.first) }

// Post records a new request with its payload in bytes. fence: it waits for the responses to all
// READs and atomics before it.
func (s *State) Post(kind Kind, bytes uint64, fence bool) {
	packets := uint32(1)
	switch {
	case kind == Local:
		packets = 0
	case kind != Atomic:
		packets = s.Packets(bytes)
	}
	s.queue.post(kind, packets, fence)
	if kind.answered() {
		bytes = 0 // the payload comes from the peer
	}
	s.cork.posted(bytes)
}

// Packets returns the number of packets for a payload of this many bytes.
func (s *State) Packets(bytes uint64) uint32 {
	if bytes <= uint64(s.mtu) { // the common case; the division would take as long as everything else
		return 1
	}
	return uint32((bytes + uint64(s.mtu) - 1) / uint64(s.mtu))
}

// Uncork is called when all requests are about to be sent. Later ones may be corked again.
func (s *State) Uncork() { s.cork.reset() }

// IdleUncorked reports whether nothing is in flight and no request is corked. A request posted now
// is then sent at once: no response would release it.
func (s *State) IdleUncorked() bool { return s.flight.idle() && s.cork.empty() }

// Corked reports whether all unsent requests were posted after the last Uncork and do not fill a
// frame. They may then wait for more.
func (s *State) Corked() bool {
	q := &s.queue
	return q.next+s.cork.requests == q.end && q.packet == 0 && s.cork.fits(uint32(s.window.batch), s.mtu)
}

// Rate returns the congestion controller's rate limit in bits per second; 0 is no limit.
func (s *State) Rate() float64 {
	return s.window.controller.Rate(uint32(s.window.size)) * float64(8*s.mtu)
}

// Quiescent reports whether nothing is in flight, and the oldest request, or the rest of it, is
// next. It may then be moved without packets.
func (s *State) Quiescent() bool {
	q := &s.queue
	underWay := q.next != q.first || !s.flight.idle()
	heldUp := s.alarm.isSet(RNRWaitEnd) || s.mode.now >= RNRWait
	failed := q.begun() && q.oldest().failed != 0
	return !underWay && !heldUp && !failed
}

// Oldest returns the number of the oldest request that is not complete. Requests are numbered from
// Begin, modulo 2^32.
func (s *State) Oldest() uint32 { return s.queue.first }

// Una returns snd.una, the oldest unacknowledged PSN. In a Quiescent State it is the next PSN to be
// sent.
func (s *State) Una() uint32 { return s.flight.una }

// Moved returns the number of packets of the oldest request that are sent and acknowledged, in a
// Quiescent State.
func (s *State) Moved() uint32 { return s.queue.packet }

// MovedDirectly records that the oldest request of a Quiescent State, or the rest of it, was
// executed without packets. It counts as if that many packets had been sent and acknowledged.
func (s *State) MovedDirectly(kind Kind, packets uint32) {
	if s.queue.begun() {
		s.queue.endDirectly()
	} else {
		if kind != Local {
			s.credits.begin(kind)
		}
		s.queue.movedDirectly()
		s.flight.start(packets)
	}
	s.movedTo(wire.PSNAdd(s.flight.una, packets))
}

// MovedPart records that some packets of the oldest request of a Quiescent State, but not the last,
// count as sent and acknowledged. The request has been posted.
func (s *State) MovedPart(packets uint32) {
	q := &s.queue
	if r := q.current(); !r.is(started) {
		q.start(r, s.flight.start(r.packets))
		s.credits.begin(r.kind)
	}
	q.movedPart(packets)
	s.movedTo(wire.PSNAdd(s.flight.una, packets))
}

// movedTo counts everything before PSN una as sent and acknowledged.
func (s *State) movedTo(una uint32) {
	s.flight.movedDirectly(una)
	s.acks.rewind(una)
	s.retries.reset()
	s.change(onProgress)
}

// change applies an event that may change the mode.
func (s *State) change(e modeEvent) {
	if s.env.Trace != nil {
		s.traceChange(e)
		return
	}
	s.mode.on(e)
}

// setWindow sets the number of packets that may be in flight.
func (s *State) setWindow(size uint32) {
	if s.env.Trace != nil {
		s.traceWindow(size)
		return
	}
	s.window.set(size)
}
