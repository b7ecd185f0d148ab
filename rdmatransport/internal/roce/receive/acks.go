package receive

// acks is which acknowledgement the peer is to get, if nothing is wrong.
type acks struct {
	psn       uint32 // newest PSN of a SEND or WRITE: only responses acknowledge READs and atomics
	due       bool
	selective bool // the peer is to be told what is kept, which acknowledges all before the gap, too
}

func (a *acks) init(psn uint32) { *a = acks{psn: psn} }

// executed notes that the SEND or WRITE packet psn was executed.
func (a *acks) executed(psn uint32) { a.psn = psn }

// ask notes that the peer waits for an acknowledgement.
func (a *acks) ask() { a.due = true }

// answer notes that a response will acknowledge all there is.
func (a *acks) answer() { a.due = false }

// setSelective notes whether the peer is to be told what is kept.
func (a *acks) setSelective(due bool) { a.selective = due }

// sent notes that whatever was due is sent.
func (a *acks) sent() { a.due, a.selective = false, false }
