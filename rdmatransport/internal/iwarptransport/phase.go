package iwarptransport

// The phases of sending, from the start of a QP's stream to its end.

// phase is the phase of sending.
type phase uint8

const (
	// closed: the QP has no stream, and nothing is sent.
	closed phase = iota
	// awaitingPeer: the responder sends nothing before the initiator's first FPDU (RFC 5044 §7.1.2,
	// rule 4).
	awaitingPeer
	// sendingRTR: the ready-to-receive message is sent before everything else (RFC 6581 §8).
	sendingRTR
	// open: requests and responses are sent.
	open
	// terminating: only the Terminate message remains to be sent. It waits for room in the stream.
	terminating

	phaseCount = int(terminating) + 1
)

func (p phase) String() string {
	return [...]string{"closed", "awaiting peer", "sending RTR", "open", "terminating"}[p]
}

// phaseEvent is an event that may change the phase.
type phaseEvent uint8

const (
	onAccepted  phaseEvent = iota // the QP has a stream that the peer initiated
	onInitiated                   // the QP has a stream that this side initiated
	// An FPDU of the peer has arrived. With Config.SendFirst, sending is allowed without one.
	onPeerFPDU
	onRTRDue  // a ready-to-receive message is due
	onRTRSent // it is sent
	// An error was found on this side. A Terminate message reports it.
	onFailure
	onDetach // the QP loses its stream

	phaseEventCount = int(onDetach) + 1
)

// phaseTable is the phase after each event. If an event is impossible or irrelevant in a phase, the
// phase stays.
//
//	               accepted       initiated  peer's FPDU  RTR due      RTR sent  failure      detach
//	closed         awaiting peer  open       stays        stays        stays     stays        stays
//	awaiting peer  stays          stays      open         stays        stays     closed       closed
//	sending RTR    stays          stays      stays        stays        open      terminating  closed
//	open           stays          stays      stays        sending RTR  stays     terminating  closed
//	terminating    stays          stays      stays        stays        stays     stays        closed
//
// A side that awaits the peer must not even send a Terminate message. Its stream is closed without
// one.
var phaseTable = [phaseCount][phaseEventCount]phase{
	closed:       {awaitingPeer, open, closed, closed, closed, closed, closed},
	awaitingPeer: {awaitingPeer, awaitingPeer, open, awaitingPeer, awaitingPeer, closed, closed},
	sendingRTR:   {sendingRTR, sendingRTR, sendingRTR, sendingRTR, open, terminating, closed},
	open:         {open, open, open, sendingRTR, open, terminating, closed},
	terminating:  {terminating, terminating, terminating, terminating, terminating, terminating, closed},
}

// rtrKind is the kind of an initiator's ready-to-receive message (RFC 6581 §8).
type rtrKind uint8

const (
	noRTR rtrKind = iota
	rtrWrite
	rtrRead
	rtrEmpty // an FPDU without a ULPDU, called a zero-length Send in RFC 6581
)

func (k rtrKind) String() string { return [...]string{"none", "WRITE", "READ", "empty FPDU"}[k] }

// lifecycle is the current phase, and the message to send in it.
type lifecycle struct {
	phase     phase
	rtr       rtrKind // while sendingRTR
	terminate []byte  // while terminating: the message
	tracer    func(from, to phase)
}

// setTracer sets the function that is called for each change of the phase.
func (l *lifecycle) setTracer(tracer func(from, to phase)) { l.tracer = tracer }

// reset returns to closed after the end of the QP's stream.
func (l *lifecycle) reset() { *l = lifecycle{tracer: l.tracer} }

// on applies an event.
func (l *lifecycle) on(e phaseEvent) {
	from := l.phase
	l.phase = phaseTable[from][e]
	if l.tracer != nil && l.phase != from {
		l.tracer(from, l.phase)
	}
}

func (l *lifecycle) is(p phase) bool { return l.phase == p }

// ended reports whether no more requests or responses will be sent.
func (l *lifecycle) ended() bool { return l.phase == terminating || l.phase == closed }

// begin starts a stream after MPA's set-up. rtr is the message that the initiator must send.
func (l *lifecycle) begin(initiator bool, rtr rtrKind) {
	l.reset()
	if !initiator {
		l.on(onAccepted)
		return
	}
	l.on(onInitiated)
	if rtr != noRTR {
		l.scheduleRTR(rtr)
	}
}

// scheduleRTR makes the ready-to-receive message the next one to be sent.
func (l *lifecycle) scheduleRTR(kind rtrKind) {
	l.rtr = kind
	l.on(onRTRDue)
}

// fail ends sending. The Terminate message is sent, if that is allowed, and nothing after it.
func (l *lifecycle) fail(terminate []byte) {
	l.terminate = terminate
	l.on(onFailure)
}
