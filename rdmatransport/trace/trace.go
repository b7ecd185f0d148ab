// Package trace says what QPs do over time, for whoever wants to know why a connection is slow or
// has failed: changes of state, losses, timeouts, waits, and how connections are set up and ended.
// Packets and work requests with which all goes well cause no events, except [AlarmSet], which
// comes with most acknowledgements.
//
// [github.com/softrnic/softrnic/rdmatransport.Trace] opens a device with a [Sink], which is called
// with each [Event]. [Logger] is a Sink that writes to log/slog. A device without a Sink pays one
// comparison with nil where there would be an event.
package trace

import "time"

// Sink is called with each event of a device's QPs, on a goroutine of the device's that does
// nothing else, soon after it has happened and with no lock held: it may call what it likes, but
// for Close and Shutdown of the device, which wait for it. Calls are made one at a time. The events
// of one QP come in the order in which they happen. Of a sink that is too slow, the events are
// lost: see EventsLost.
type Sink func(Event)

// Event is one thing that happened to a QP. The fields that are not said to be set at its Type are
// zero.
type Event struct {
	Time      time.Time
	Type      Type
	Transport string        // "RoCE" or "iWARP"
	QPN       uint32        // number of the QP; 0 for MPAFailed, where no QP has the connection
	From      string        // what was
	To        string        // what is
	PSN       uint32        // 24 bits
	Packets   uint32        // how many
	Duration  time.Duration // how long
	Detail    string        // what it was, in words
	Err       error         // why
}

// Type is what happened.
type Type uint8

const (
	// QPState: the QP has gone from state From to state To, as in RTS and ERR.
	QPState Type = iota + 1

	// SendMode (RoCE): the requester has gone from mode From to mode To: "in order", "gone back",
	// "probing", "selective", "RNR wait" or "failed".
	SendMode
	// PacketsLost (RoCE): so many Packets, the first of which has number PSN, are taken for lost,
	// and will be sent again.
	PacketsLost
	// ProbeSent (RoCE): nothing was heard for longer than a round trip takes, and the packet PSN is
	// sent again for the peer to acknowledge.
	ProbeSent
	// RetransmissionTimeout (RoCE): the packet PSN was not acknowledged within the QP's timeout.
	// This counts as a retry.
	RetransmissionTimeout
	// RNRWaitStarted (RoCE): the peer has no receive request for PSN, and has asked to be sent
	// nothing from there on for the Duration.
	RNRWaitStarted
	// RNRWaitEnded (RoCE): that time is over, or the PSN turned out to have been executed.
	RNRWaitEnded
	// NAKSent (RoCE): the responder has refused the packet PSN; Detail says why, as IBTA Vol 1
	// §9.7.5.2.2 names it.
	NAKSent
	// NAKReceived (RoCE): the peer has refused the packet PSN; Detail says why.
	NAKReceived
	// Window (RoCE): so many Packets may be in flight from now on.
	Window
	// AlarmSet (RoCE): the alarm Detail ("retransmission", "probe" or "RNR") goes off after
	// Duration, unless it is set anew or stopped before.
	AlarmSet
	// AlarmFired (RoCE): the alarm Detail has gone off.
	AlarmFired

	// SendPhase (iWARP): the sender has gone from phase From to phase To: "closed", "awaiting
	// peer", "sending RTR", "open" or "terminating".
	SendPhase
	// MPANegotiated (iWARP): a QP has the stream; Detail says what the MPA request and reply have
	// settled.
	MPANegotiated
	// MPAFailed (iWARP): an initiator's connection was not set up; Err says why, Detail with whom.
	MPAFailed
	// TerminateSent (iWARP): this side has ended the stream, for the reason Detail.
	TerminateSent
	// TerminateReceived (iWARP): the peer has ended the stream, for the reason Detail.
	TerminateReceived
	// StreamLost (iWARP): TCP's connection was lost, or ended in the middle of an FPDU; Err says
	// why.
	StreamLost

	// EventsLost: so many events (Packets) of any QPs were not told, as the sink is too slow.
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
	EventsLost:            "events lost",
}

// String is the type's name, in words.
func (t Type) String() string {
	if int(t) >= types || typeNames[t] == "" {
		return "unknown event"
	}
	return typeNames[t]
}
