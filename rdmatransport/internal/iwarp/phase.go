package iwarp

// The phases of a QP's sending, from the start of its stream to the end.

// phase is what the sender may send.
type phase uint8

const (
	// closed: the QP has no stream, and nothing is sent.
	closed phase = iota
	// awaitingPeer: the accepting side sends nothing before the initiator's first FPDU (RFC 5044
	// §7.1.2, rule 4).
	awaitingPeer
	// sendingRTR: the ready-to-receive message goes before everything else (RFC 6581 §8).
	sendingRTR
	// open: requests and responses are sent.
	open
	// terminating: only the Terminate message is left to be sent. It waits for room in the stream.
	terminating

	phaseCount = int(terminating) + 1
)

func (p phase) String() string {
	return [...]string{"closed", "awaiting peer", "sending RTR", "open", "terminating"}[p]
}

// phaseEvent is what may change the phase.
type phaseEvent uint8

const (
	onAccepted  phaseEvent = iota // the QP has a stream that the peer has initiated
	onInitiated                   // the QP has a stream that this side has initiated
	onPeerFPDU                    // an FPDU of the peer has come, or Config.SendFirst allows to send without one
	onRTRDue                      // a ready-to-receive message is to be sent
	onRTRSent                     // it is sent
	onFailure                     // an error was found on this side, of which the peer is told by a Terminate message
	onDetach                      // the QP and the stream are parted

	phaseEventCount = int(onDetach) + 1
)

// phaseTable is the phase behind each event. Where an event cannot occur or does not matter, the
// phase stays.
//
//	               accepted       initiated  peer's FPDU  RTR due      RTR sent  failure      detach
//	closed         awaiting peer  open       stays        stays        stays     stays        stays
//	awaiting peer  stays          stays      open         stays        stays     closed       closed
//	sending RTR    stays          stays      stays        stays        open      terminating  closed
//	open           stays          stays      stays        sending RTR  stays     terminating  closed
//	terminating    stays          stays      stays        stays        stays     stays        closed
//
// A side that still awaits the peer may not even send a Terminate message: its stream is closed
// without one.
var phaseTable = [phaseCount][phaseEventCount]phase{
	closed:       {awaitingPeer, open, closed, closed, closed, closed, closed},
	awaitingPeer: {awaitingPeer, awaitingPeer, open, awaitingPeer, awaitingPeer, closed, closed},
	sendingRTR:   {sendingRTR, sendingRTR, sendingRTR, sendingRTR, open, terminating, closed},
	open:         {open, open, open, sendingRTR, open, terminating, closed},
	terminating:  {terminating, terminating, terminating, terminating, terminating, terminating, closed},
}

// rtrKind is what an initiator sends as its ready-to-receive message (RFC 6581 §8).
type rtrKind uint8

const (
	noRTR rtrKind = iota
	rtrWrite
	rtrRead
	rtrEmpty // an FPDU without a ULPDU, which RFC 6581 calls a zero-length Send
)

func (k rtrKind) String() string { return [...]string{"none", "WRITE", "READ", "empty FPDU"}[k] }

// lifecycle is the present phase, and the message that is sent in it.
type lifecycle struct {
	phase     phase
	rtr       rtrKind // while sendingRTR
	terminate []byte  // while terminating: the message
	tracer    func(from, to phase)
}

// setTracer has each change of the phase told to tracer.
func (l *lifecycle) setTracer(tracer func(from, to phase)) { l.tracer = tracer }

// reset goes back to closed, from where the stream of the QP, if it had one, has ended.
func (l *lifecycle) reset() { *l = lifecycle{tracer: l.tracer} }

// on changes the phase as an event asks for.
func (l *lifecycle) on(e phaseEvent) {
	from := l.phase
	l.phase = phaseTable[from][e]
	if l.tracer != nil && l.phase != from {
		l.tracer(from, l.phase)
	}
}

func (l *lifecycle) is(p phase) bool { return l.phase == p }

// ended reports whether neither requests nor responses will be sent any more.
func (l *lifecycle) ended() bool { return l.phase == terminating || l.phase == closed }

// begin starts with a stream that MPA has started; rtr is the message that the initiator owes, if
// it owes one.
func (l *lifecycle) begin(initiator bool, rtr rtrKind) {
	l.reset()
	if !initiator {
		l.on(onAccepted)
		return
	}
	l.on(onInitiated)
	if rtr != noRTR {
		l.askRTR(rtr)
	}
}

// askRTR has a ready-to-receive message sent before everything else.
func (l *lifecycle) askRTR(kind rtrKind) {
	l.rtr = kind
	l.on(onRTRDue)
}

// fail has the Terminate message sent, if one may be, and nothing after it.
func (l *lifecycle) fail(terminate []byte) {
	l.terminate = terminate
	l.on(onFailure)
}
