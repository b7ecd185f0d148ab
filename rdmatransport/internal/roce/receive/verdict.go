package receive

// Verdict is what the responder thinks of what has come, and whether the peer knows.
type Verdict uint8

const (
	// Accepting: nothing is wrong.
	Accepting Verdict = iota
	// NAKSent: the expected packet is missing, and the peer was told by a sequence NAK. What was in
	// flight then is no reason for another.
	NAKSent
	// RNRSent: the expected packet has found no receive request, and the peer was told by an RNR
	// NAK, and is waiting.
	RNRSent
	// NAKDue: the expected packet is missing, and the NAK is to be sent, once all before it is
	// answered.
	NAKDue
	// RNRDue: the same of an RNR NAK.
	RNRDue
	// RefusalDue: the expected packet was refused, and the NAK that is due ends the connection.
	RefusalDue
	// Refused: it was sent. Nothing is taken any more.
	Refused

	verdicts = int(Refused) + 1
)

func (v Verdict) String() string {
	return [...]string{"accepting", "NAK sent", "RNR NAK sent", "NAK due", "RNR NAK due", "refusal due", "refused"}[v]
}

// verdictEvent is what may change the verdict.
type verdictEvent uint8

const (
	onTurn      verdictEvent = iota // the expected packet has come, or needed no packet
	onGap                           // it is missing, and the peer has to be told
	onNotReady                      // it has found no receive request
	onRefusal                       // it is in error
	onSent                          // the NAK that was due is sent
	onWithdrawn                     // the packet in error was kept, and is perhaps not the peer's

	verdictEvents = int(onWithdrawn) + 1
)

// verdictAfter is the verdict behind each event. Where an event cannot occur or does not matter,
// the verdict stays.
//
//	             turn      gap     not ready refusal     sent     withdrawn
//	accepting    stays     NAK due RNR due   refusal due stays    stays
//	NAK sent     accepting NAK due RNR due   refusal due stays    stays
//	RNR sent     accepting NAK due RNR due   refusal due stays    stays
//	NAK due      accepting stays   RNR due   refusal due NAK sent stays
//	RNR due      accepting NAK due stays     refusal due RNR sent stays
//	refusal due  stays     stays   stays     stays       refused  accepting
//	refused      stays     stays   stays     stays       stays    stays
//
// A gap while a NAK was sent is one that is told again: a peer that marks its packets probes with
// the last, and after an RNR NAK the packet may have been sent again and lost.
var verdictAfter = [verdicts][verdictEvents]Verdict{
	Accepting:  {Accepting, NAKDue, RNRDue, RefusalDue, Accepting, Accepting},
	NAKSent:    {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKSent},
	RNRSent:    {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRSent},
	NAKDue:     {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKDue},
	RNRDue:     {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRDue},
	RefusalDue: {RefusalDue, RefusalDue, RefusalDue, RefusalDue, Refused, Accepting},
	Refused:    {Refused, Refused, Refused, Refused, Refused, Refused},
}

// verdict is the present one.
type verdict struct {
	now      Verdict
	syndrome uint8 // of the RNR NAK or the refusal
	reason   uint8 // of the refusal: the owner's
}

func (v *verdict) init() { *v = verdict{} }

// on changes the verdict as an event asks for.
func (v *verdict) on(e verdictEvent) {
	if v.now != Accepting || e != onTurn { // what nearly every packet is
		v.now = verdictAfter[v.now][e]
	}
}

// notReady is the event that the expected packet has found no receive request.
func (v *verdict) notReady(syndrome uint8) {
	v.on(onNotReady)
	v.syndrome = syndrome
}

// refuse is the event that the expected packet is in error.
func (v *verdict) refuse(syndrome, reason uint8) {
	v.on(onRefusal)
	v.syndrome, v.reason = syndrome, reason
}

// refused reports whether the connection ends, or has ended.
func (v *verdict) refused() bool { return v.now >= RefusalDue }

// due reports whether a NAK is.
func (v *verdict) due() bool { return v.now >= NAKDue && v.now <= RefusalDue }

// waitsForReceive reports whether what is wrong is that there was no receive request.
func (v *verdict) waitsForReceive() bool { return v.now == RNRDue || v.now == RNRSent }
