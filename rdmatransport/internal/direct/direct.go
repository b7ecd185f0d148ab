// Package direct is the in-process path: messages between two QPs of one process are copied from
// memory to memory, under the locks of both QPs. An engine checks each request, and keeps the state
// of both QPs as if packets or segments had been exchanged. This package decides which goroutine
// moves requests and how long it holds the locks, and copies the data.
//
// The locks are held for maxPart bytes, and longer only if nothing waits for them. A longer message
// is moved in parts. A change of a QP or its memory between two parts thus has the same result as
// between two packets.
//
// A goroutine that posts moves everything that it posted. A goroutine that serves other QPs,
// because it receives or runs timers, holds the locks once, and leaves the rest to a new goroutine.
package direct

import "github.com/softrnic/softrnic/verbs"

const (
	// maxPart is how many bytes are moved before others may take the locks. That takes 0.1 to 0.2
	// ms. It is a multiple of every path MTU.
	maxPart = 1 << 20
	// minCost is the smallest size that a message counts for.
	minCost = 1 << 10
)

// Result says how to continue with the send queue.
type Result uint8

const (
	Done      Result = iota // nothing is left, or the QP no longer sends
	Changed                 // the queue may have changed: check again
	Wire                    // the next request must be sent on the wire
	Waits                   // the next request has to wait
	Deferred                // another goroutine moves the rest
	More                    // more can be moved
	Contended               // more can be moved, but one of the locks has a waiter
)

// QP is an engine's QP. It is locked in all calls.
type QP interface {
	// Oldest returns the number of the oldest send request.
	Oldest() uint32
	// MoveSome moves requests while it holds the locks of both QPs once (see Hold).
	MoveSome() Result
	// Flush sends what the engine has gathered, before the QP is unlocked.
	Flush()
	// MayContinue returns More, or another result if the QP changed while it was unlocked.
	MayContinue() Result
	// SendAll sends all requests, on a goroutine that serves only this QP.
	SendAll()
	// Go runs f on a goroutine of its own, in the device's time.
	Go(f func())
}

// Mover is the state of a QP that moves its requests. Its zero value is ready to use.
type Mover uint8

const (
	moving  Mover = 1 << iota // Move is running, or will continue, even while the QP is unlocked
	posting                   // the goroutine with the lock serves only this QP
)

// Moving reports whether requests are being moved. Nothing else may send requests then.
func (m *Mover) Moving() bool { return *m&moving != 0 }

// SetPosting says whether the goroutine that holds the lock serves only this QP.
func (m *Mover) SetPosting(on bool) {
	if *m &^= posting; on {
		*m |= posting
	}
}

// Move moves requests, from the oldest on, as far as possible. It may unlock the QP temporarily,
// and returns no result above Deferred. Requests that others post meanwhile are left to another
// goroutine.
func (m *Mover) Move(q QP, h verbs.QPHandle) Result {
	*m |= moving
	end := q.Oldest() + uint32(h.SendLen())
	r := q.MoveSome()
	posted := *m&posting != 0
	for r >= More {
		if !posted || int32(q.Oldest()-end) >= 0 {
			q.Go(func() { m.moveRest(q, h) })
			return Deferred
		}
		if r == Contended {
			q.Flush()
			h.Yield()
		}
		if r = q.MayContinue(); r == More {
			r = q.MoveSome()
		}
	}
	*m &^= moving
	return r
}

// moveRest sends the rest after Move.
func (m *Mover) moveRest(q QP, h verbs.QPHandle) {
	h.Lock()
	defer h.Unlock()
	*m &^= moving
	q.SendAll()
}

// Hold limits how long the locks of two QPs are held.
type Hold struct {
	q, p  verbs.QPHandle
	moved uint64
}

// NewHold returns the Hold of two QPs that were just locked.
func NewHold(q, p verbs.QPHandle) Hold { return Hold{q: q, p: p} }

// Over returns More or Contended if it is time to unlock the QPs, otherwise Done.
func (h *Hold) Over() Result {
	switch {
	case h.moved < maxPart:
		return Done
	case h.q.Contended() || h.p.Contended():
		return Contended
	}
	return More
}

// Add counts n bytes that were moved.
func (h *Hold) Add(n uint64) { h.moved += max(n, minCost) }

// Part returns how many of the remaining bytes of a message are moved next. last: that is all of
// them.
func Part(remaining uint64) (n uint64, last bool) {
	if remaining > maxPart {
		return maxPart, false
	}
	return remaining, true
}
