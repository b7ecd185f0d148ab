package receive

// acks is the acknowledgement that is due if no NAK is.
type acks struct {
	psn uint32 // newest PSN of a SEND or WRITE: only responses acknowledge READs and atomics
	due bool
	// A selective acknowledgement is due; it also acknowledges everything before the gap.
	selective bool
}

func (a *acks) init(psn uint32) { *a = acks{psn: psn} }

// executed records that the SEND or WRITE packet psn was executed.
func (a *acks) executed(psn uint32) { a.psn = psn }

// request records that the peer asked for an acknowledgement.
func (a *acks) request() { a.due = true }

// cancel drops the acknowledgement: a response will acknowledge everything before it.
func (a *acks) cancel() { a.due = false }

// setSelective records whether a selective acknowledgement is due.
func (a *acks) setSelective(due bool) { a.selective = due }

// sent records that the acknowledgement was sent.
func (a *acks) sent() { a.due, a.selective = false, false }
