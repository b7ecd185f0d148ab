package receive

// Verdict is what the responder thinks of what has come, and whether the peer knows.
type Verdict uint8

const (
	// Accepting: nothing is wrong.
	Accepting Verdict = iota
	// NAKDue: the expected packet is missing. A sequence NAK is due, once all before it is answered.
	NAKDue
	// NAKSent: the peer was told. What was in flight then is no reason for another NAK.
	NAKSent
	// RNRDue: the expected packet has come and found no receive request. An RNR NAK is due.
	RNRDue
	// RNRSent: the peer was told, and is waiting.
	RNRSent
	// RefusalDue: the expected packet was refused, and the NAK that is due ends the connection.
	RefusalDue
	// Refused: it was sent. Nothing is taken any more.
	Refused

	verdicts = int(Refused) + 1
)

func (v Verdict) String() string {
	return [...]string{"accepting", "NAK due", "NAK sent", "RNR NAK due", "RNR NAK sent", "refusal due", "refused"}[v]
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

// verdictAfter is the verdict behind each event. Where an event cannot occur or does not matter, the verdict stays.
//
//	             turn      gap     not ready refusal     sent     withdrawn
//	accepting    stays     NAK due RNR due   refusal due stays    stays
//	NAK due      accepting stays   RNR due   refusal due NAK sent stays
//	NAK sent     accepting NAK due RNR due   refusal due stays    stays
//	RNR due      accepting NAK due stays     refusal due RNR sent stays
//	RNR sent     accepting NAK due RNR due   refusal due stays    stays
//	refusal due  stays     stays   stays     stays       refused  accepting
//	refused      stays     stays   stays     stays       stays    stays
//
// A gap while a NAK was sent is one that is told again: a peer that keeps its packets' marks probes with the last, and
// after an RNR NAK the packet may have been sent again and lost.
var verdictAfter = [verdicts][verdictEvents]Verdict{
	Accepting:  {Accepting, NAKDue, RNRDue, RefusalDue, Accepting, Accepting},
	NAKDue:     {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKDue},
	NAKSent:    {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKSent},
	RNRDue:     {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRDue},
	RNRSent:    {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRSent},
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

// on takes an event in.
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

// refused tells that the connection ends, or has ended.
func (v *verdict) refused() bool { return v.now >= RefusalDue }

// due tells that a NAK is.
func (v *verdict) due() bool { return 1<<v.now&(1<<NAKDue|1<<RNRDue|1<<RefusalDue) != 0 }

// waitsForReceive tells that what is wrong is that there was no receive request.
func (v *verdict) waitsForReceive() bool { return v.now == RNRDue || v.now == RNRSent }
