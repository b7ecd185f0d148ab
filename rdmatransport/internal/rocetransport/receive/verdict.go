package receive

// Verdict is the state of NAKs: whether one is due, or was sent.
type Verdict uint8

const (
	// Accepting: no packet is missing or in error.
	Accepting Verdict = iota
	// NAKSent: the expected packet is missing, and a sequence NAK was sent. Packets that were in
	// flight then cause no second NAK.
	NAKSent
	// RNRSent: the expected packet found no receive request, and an RNR NAK was sent. The peer is
	// waiting.
	RNRSent
	// NAKDue: the expected packet is missing, and the NAK must follow all queued responses.
	NAKDue
	// RNRDue: the same for an RNR NAK.
	RNRDue
	// RefusalDue: the expected packet was refused, and the NAK that is due ends the connection.
	RefusalDue
	// Refused: the NAK was sent. No more packets are accepted.
	Refused

	verdicts = int(Refused) + 1
)

func (v Verdict) String() string {
	return [...]string{"accepting", "NAK sent", "RNR NAK sent", "NAK due", "RNR NAK due", "refusal due", "refused"}[v]
}

// verdictEvent is an event that may change the verdict.
type verdictEvent uint8

const (
	onExpected verdictEvent = iota // the expected packet has arrived, or was moved without packets
	onGap                          // the packet is missing, and a NAK is due
	onNotReady                     // the packet found no receive request
	onRefusal                      // the packet is in error
	onSent                         // the NAK was sent
	// The packet in error was a kept one, and may be forged.
	onWithdrawn

	verdictEvents = int(onWithdrawn) + 1
)

// verdictAfter is the verdict after each event. The verdict stays if an event cannot occur or does
// not matter.
//
//	             expected  gap     not ready refusal     sent     withdrawn
//	accepting    stays     NAK due RNR due   refusal due stays    stays
//	NAK sent     accepting NAK due RNR due   refusal due stays    stays
//	RNR sent     accepting NAK due RNR due   refusal due stays    stays
//	NAK due      accepting stays   RNR due   refusal due NAK sent stays
//	RNR due      accepting NAK due stays     refusal due RNR sent stays
//	refusal due  stays     stays   stays     stays       refused  accepting
//	refused      stays     stays   stays     stays       stays    stays
//
// A gap after a NAK causes another NAK in two cases. A peer that marks its packets probes with the
// last one. After an RNR NAK, the packet may have been retransmitted and lost.
var verdictAfter = [verdicts][verdictEvents]Verdict{
	Accepting:  {Accepting, NAKDue, RNRDue, RefusalDue, Accepting, Accepting},
	NAKSent:    {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKSent},
	RNRSent:    {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRSent},
	NAKDue:     {Accepting, NAKDue, RNRDue, RefusalDue, NAKSent, NAKDue},
	RNRDue:     {Accepting, NAKDue, RNRDue, RefusalDue, RNRSent, RNRDue},
	RefusalDue: {RefusalDue, RefusalDue, RefusalDue, RefusalDue, Refused, Accepting},
	Refused:    {Refused, Refused, Refused, Refused, Refused, Refused},
}

// verdict is the current verdict.
type verdict struct {
	now      Verdict
	syndrome uint8 // of the RNR NAK or the refusal
	reason   uint8 // of the refusal: the owner's
}

func (v *verdict) init() { *v = verdict{} }

// on applies an event.
func (v *verdict) on(e verdictEvent) {
	if v.now != Accepting || e != onExpected { // the common case
		v.now = verdictAfter[v.now][e]
	}
}

// notReady records that the expected packet found no receive request.
func (v *verdict) notReady(syndrome uint8) {
	v.on(onNotReady)
	v.syndrome = syndrome
}

// refuse records that the expected packet is in error.
func (v *verdict) refuse(syndrome, reason uint8) {
	v.on(onRefusal)
	v.syndrome, v.reason = syndrome, reason
}

// refused reports whether the connection ends, or has ended.
func (v *verdict) refused() bool { return v.now >= RefusalDue }

// due reports whether a NAK is due.
func (v *verdict) due() bool { return v.now >= NAKDue && v.now <= RefusalDue }

// waitsForReceive reports whether the expected packet found no receive request.
func (v *verdict) waitsForReceive() bool { return v.now == RNRDue || v.now == RNRSent }
