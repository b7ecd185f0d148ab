// Package send is the state of a reliable connection's sending: which packet of which work request
// is sent next, what is in flight, what is lost, and until when to wait. It knows PSNs, packets and
// time, and nothing of verbs, of memory or of the network: its owner, the requester, turns its
// answers into packets and what comes back into its events. (IBTA Vol 1 §9.7.3, §9.7.5, §9.7.6,
// §9.9.2)
//
// Questions have no side effects: Next is what may be sent now, Deadline until when to wait. Events
// are what happened: a request was posted (Post), a burst of packets sent (Sent), an
// acknowledgement or a response came (OnAck, OnSequenceNAK, OnAnswer …), the alarm went off
// (OnAlarm), a message needed no packets (MovedDirectly, MovedPart). The outcome of an event says
// what the owner has to do.
//
// A State has no lock; its owner has one.
//
// Each concern has its file, and each field is written in the file that declares it. From the top:
// State puts the events together (state.go, next.go, acknowledge.go, selective.go, retransmit.go),
// and stands on queue.go, the requests and the cursor; flight.go, what is in flight; window.go and
// congestion.go, how much may be, and delay.go and base.go, by delay; scoreboard.go and loss.go,
// what is missing of it; ackfreq.go, when to ask for an acknowledgement; credits.go, what the peer
// has receive requests for; reads.go, the outstanding READs; rtt.go and delays.go, the round trip;
// alarm.go, probe.go and retry.go, what happens when nothing comes back; cork.go, what may wait to
// share a frame; mode.go, what the requester is doing about all of that; and trace.go tells of it.
package send

import (
	"math/bits"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/trace"
)

// State is the state of sending of one QP. The zero value has to be set up by Init, and by Begin
// for each connection.
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
	rttSamples *rttSamples // nil unless the congestion controller goes by them
	alarm      alarm
	probe      probe
	cork       cork
	limits     Limits
	env        *Env
}

// Env is what a State needs of its owner. Several may share one that traces nothing.
type Env struct {
	Clock Clock
	// Trace is told what the State decides. The owner adds to an event what a State does not know:
	// the time and the QP. It is nil if nothing is traced.
	Trace func(trace.Event)
}

// Clock is a monotonic time, counted from some start; 0 stands for never.
type Clock func() time.Duration

// Limits are what the QP's attributes bound. They may change while the QP is connected.
type Limits struct {
	Retries  uint8         // timeouts and sequence NAKs without progress
	RNR      uint8         // RNR NAKs without progress; 7 is any number
	MaxReads uint8         // outstanding READs and atomics
	Timeout  time.Duration // retransmission timeout; 0 is none
}

// Connection is what a QP enters RTS with.
type Connection struct {
	PSN uint32 // of the first packet
	MTU uint32 // bytes of payload in a full packet
	Path
}

// Path is what is sent on.
type Path struct {
	Window     uint32 // packets in flight at most: a power of two
	Batch      uint32 // full packets in one frame of the link
	Congestion CongestionController
}

// Init sets the environment, and how many requests there may be, at least one. It is called once.
func (s *State) Init(requests int, env *Env) {
	s.queue.init(1 << bits.Len(uint(requests-1)))
	s.env = env
	s.mode.on(onFailure) // nothing is sent before Begin
}

// Begin sets everything up as the QP enters RTS.
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

// SetPath has what follows sent on another path: nothing that was learned of the one before holds
// for it.
func (s *State) SetPath(p *Path) {
	s.window.init(p.Window, p.Batch, p.Congestion)
	s.rtt.reset()
	s.rttSamples = nil
	if p.Congestion.Params().MeasureRTT {
		s.rttSamples = new(rttSamples)
	}
}

// Stop ends sending: the QP has failed, or is reset.
func (s *State) Stop() {
	s.change(onFailure)
	s.board.close()
	s.alarm.reset()
	s.probe.cancel()
}

// Reset is Stop, and forgets what was posted, and the limits.
func (s *State) Reset() {
	s.Stop()
	s.limits = Limits{}
	s.queue.reset()
	s.flight.init(0)
	s.reads.reset()
	s.cork.reset()
}

// SetLimits changes what the QP's attributes bound.
func (s *State) SetLimits(l Limits) { s.limits = l }

// Limits is what the QP's attributes bound.
func (s *State) Limits() Limits { return s.limits }

// Mode is what the requester is doing.
func (s *State) Mode() Mode { return s.mode.now }

// NextPSN is the PSN that the next new request gets.
func (s *State) NextPSN() uint32 { return s.flight.next }

// Idle reports whether nothing is in flight.
func (s *State) Idle() bool { return s.flight.idle() }

// SentBehind reports whether a packet with PSN psn or a later one was ever sent.
func (s *State) SentBehind(psn uint32) bool { return wire.PSNDiff(psn, s.flight.max) < 0 }

// Begun reports whether a request is under way.
func (s *State) Begun() bool { return s.queue.begun() }

// Posted is how many requests have been posted here and are not complete.
func (s *State) Posted() int { return int(s.queue.end - s.queue.first) }

// Post is told of the next request that was posted: its payload, in bytes, and whether it waits for
// the answers to all READs and atomics before it.
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

// Packets is how many packets carry so many bytes.
func (s *State) Packets(bytes uint64) uint32 {
	if bytes <= uint64(s.mtu) { // most messages; a division takes as long as all the rest
		return 1
	}
	return uint32((bytes + uint64(s.mtu) - 1) / uint64(s.mtu))
}

// Uncork is called when all that may be sent is about to be sent. What is posted later may be
// corked again.
func (s *State) Uncork() { s.cork.reset() }

// Alone reports whether a request that is posted now should not wait to share a frame with others:
// nothing in flight will bring an answer, on which it would leave, and nothing else waits.
func (s *State) IdleUncorked() bool { return s.flight.idle() && s.cork.empty() }

// Corked reports whether all requests that are not sent were posted after the last Uncork, and do
// not fill a frame: they may wait for more.
func (s *State) Corked() bool {
	q := &s.queue
	return q.next+s.cork.requests == q.end && q.packet == 0 && s.cork.fits(uint32(s.window.batch), s.mtu)
}

// Rate is at how many bits a second packets may be sent by the congestion controller; 0 is any
// number.
func (s *State) Rate() float64 {
	return s.window.controller.Rate(uint32(s.window.size)) * float64(8*s.mtu)
}

// Still reports whether nothing is under way: the oldest request is to be sent next, or the rest of
// it, and what was sent of it is acknowledged. It may be moved without packets.
func (s *State) Quiescent() bool {
	q := &s.queue
	underWay := q.next != q.first || !s.flight.idle()
	heldUp := s.alarm.isSet(RNR) || s.mode.now >= RNRWait
	failed := q.begun() && q.oldest().failed != 0
	return !underWay && !heldUp && !failed
}

// Oldest is the number of the oldest request that is not complete: they are counted from Begin on,
// modulo 2^32.
func (s *State) Oldest() uint32 { return s.queue.first }

// Una is the oldest PSN that is not acknowledged; where the State is Still, the next that is sent.
func (s *State) Una() uint32 { return s.flight.una }

// Moved is how many packets of the oldest request are sent and acknowledged, where the State is
// Still.
func (s *State) Moved() uint32 { return s.queue.packet }

// MovedDirectly is told that the oldest request, where the State is Still, was executed without
// packets, or the rest of it, and counts as if its so many packets had been sent and acknowledged.
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

// MovedPart is told that so many packets of the oldest request, where the State is Still, but not
// all that are left, count as if they had been sent and acknowledged. It has been posted.
func (s *State) MovedPart(packets uint32) {
	q := &s.queue
	if r := q.current(); !r.is(started) {
		q.start(r, s.flight.start(r.packets))
		s.credits.begin(r.kind)
	}
	q.movedPart(packets)
	s.movedTo(wire.PSNAdd(s.flight.una, packets))
}

// movedTo counts everything before PSN una as sent and acknowledged, without packets.
func (s *State) movedTo(una uint32) {
	s.flight.movedDirectly(una)
	s.acks.rewind(una)
	s.retries.reset()
	s.change(onProgress)
}

// change takes an event in that may change the mode.
func (s *State) change(e modeEvent) {
	if s.env.Trace != nil {
		s.traceChange(e)
		return
	}
	s.mode.on(e)
}

// setWindow sets how many packets may be in flight.
func (s *State) setWindow(size uint32) {
	if s.env.Trace != nil {
		s.traceWindow(size)
		return
	}
	s.window.set(size)
}
