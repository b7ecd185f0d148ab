// Package trace reports what QPs do over time, to find out why a connection is slow or has failed:
// changes of state, losses, timeouts, waits, and the set-up and end of connections. Packets and
// work requests without problems cause no events, except [AlarmSet], which occurs with most
// acknowledgements.
//
// [github.com/softrnic/softrnic/rdmatransport.Config] has the [Sink] of a device, which is called
// for each [Event]. [Logger] is a Sink that writes to log/slog. On a device without a Sink, an
// event costs one comparison with nil.
package trace

import "time"

// Sink is called for each event of a device's QPs, soon after it has happened. It runs on a
// separate goroutine of the device, with no lock held. It may call anything except Close and
// Shutdown of the device, which wait for it. Calls are made one at a time. The events of one QP are
// in order. If a sink is too slow, events are lost: see EventsLost.
type Sink func(Event)

// Event is an event of a QP. Fields that its Type does not set are zero.
type Event struct {
	Time      time.Time
	Type      Type
	Transport string        // "RoCE" or "iWARP"
	QPN       uint32        // number of the QP; 0 for MPAFailed, which has no QP
	From      string        // the old value
	To        string        // the new value
	PSN       uint32        // 24 bits
	Packets   uint32        // number of packets
	Duration  time.Duration // how long
	Detail    string        // in words
	Err       error         // the reason
}

// Type is the type of an event.
type Type uint8

const (
	// QPState: the QP moved from state From to state To, such as RTS and ERR.
	QPState Type = iota + 1

	// SendMode (RoCE): the requester moved from mode From to mode To: "in order", "gone back",
	// "probing", "selective", "RNR wait" or "failed".
	SendMode
	// PacketsLost (RoCE): this many Packets, the first with number PSN, are considered lost and
	// will be retransmitted.
	PacketsLost
	// ProbeSent (RoCE): no answer arrived for longer than a round trip, and the packet PSN is
	// retransmitted to get an acknowledgement.
	ProbeSent
	// RetransmissionTimeout (RoCE): the packet PSN was not acknowledged within the QP's timeout.
	// This counts as a retry.
	RetransmissionTimeout
	// RNRWaitStarted (RoCE): the peer has no receive request for PSN. For the Duration, neither
	// PSN nor any later packet is sent.
	RNRWaitStarted
	// RNRWaitEnded (RoCE): the wait is over, or the peer has executed the PSN.
	RNRWaitEnded
	// NAKSent (RoCE): the responder refused the packet PSN; Detail is the reason, with the name in
	// IBTA Vol 1 §9.7.5.2.2.
	NAKSent
	// NAKReceived (RoCE): the peer refused the packet PSN; Detail is the reason.
	NAKReceived
	// Window (RoCE): from now on, this many Packets may be in flight.
	Window
	// AlarmSet (RoCE): the alarm Detail ("retransmission" or "probe") goes off after Duration,
	// unless it is set again or stopped before.
	AlarmSet
	// AlarmFired (RoCE): the alarm Detail has gone off: "retransmission", "probe", or "RNR wait" at
	// the end of an RNR wait.
	AlarmFired

	// SendPhase (iWARP): the sender moved from phase From to phase To: "closed", "awaiting peer",
	// "sending RTR", "open" or "terminating".
	SendPhase
	// MPANegotiated (iWARP): a QP has the stream; Detail is the result of the negotiation by MPA
	// request and reply.
	MPANegotiated
	// MPAFailed (iWARP): an initiator's connection was not set up; Err is the reason, and Detail
	// names the peer.
	MPAFailed
	// TerminateSent (iWARP): this side has ended the stream, for the reason Detail.
	TerminateSent
	// TerminateReceived (iWARP): the peer has ended the stream, for the reason Detail.
	TerminateReceived
	// StreamLost (iWARP): the TCP connection was lost, or ended in the middle of an FPDU; Err is
	// the reason.
	StreamLost

	// FaultInjected: the device was made to fail by the rule Detail: see package fault. QPN is 0, and
	// Transport empty, if it is no QP's.
	FaultInjected

	// EventsLost: this many events (Packets) of any QPs were lost, because the sink is too slow.
	EventsLost

	types = int(EventsLost) + 1
)

var typeNames = [types]string{
	QPState:               "QP state",
	SendMode:              "send mode",
	PacketsLost:           "packets lost",
	ProbeSent:             "probe sent",
	RetransmissionTimeout: "retransmission timeout",
	RNRWaitStarted:        "RNR wait started",
	RNRWaitEnded:          "RNR wait ended",
	NAKSent:               "NAK sent",
	NAKReceived:           "NAK received",
	Window:                "window",
	AlarmSet:              "alarm set",
	AlarmFired:            "alarm fired",
	SendPhase:             "send phase",
	MPANegotiated:         "MPA negotiated",
	MPAFailed:             "MPA failed",
	TerminateSent:         "Terminate sent",
	TerminateReceived:     "Terminate received",
	StreamLost:            "stream lost",
	FaultInjected:         "fault injected",
	EventsLost:            "events lost",
}

// String returns the type's name, in words.
func (t Type) String() string {
	if int(t) >= types || typeNames[t] == "" {
		return "unknown event"
	}
	return typeNames[t]
}
