package receive

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// Kind is what is answered.
type Kind uint8

const (
	Read   Kind = iota
	Atomic      // by what memory held
	Empty       // FLUSH and ATOMIC WRITE: by a READ response of no bytes
)

// Response is what a READ, atomic, FLUSH or ATOMIC WRITE is answered with, or was.
type Response struct {
	Kind     Kind
	Deferred bool      // the request is still to be executed
	replay   bool      // it was asked for again
	partial  bool      // it repeats a READ from behind the original's first packet on
	MSN      uint32    // messages completed with it
	PSN      uint32    // of the first packet still to be sent
	Packets  uint32    // still to be sent
	sent     uint32    // packets that are
	RETH     wire.RETH // READ: what is still to be read
	Orig     uint64    // Atomic: what memory held before, once it is executed
	Owner    any       // whatever the State's owner wants to know of it
}

// First reports whether the next packet is the first of the READ that is answered.
func (r *Response) First() bool { return r.sent == 0 && !r.partial }

// number sets the place of a response: its first PSN, how many packets it has, and its MSN.
func (r *Response) number(psn, packets, msn uint32) { r.PSN, r.Packets, r.MSN = psn, packets, msn }

// total is how many packets it takes, those that are sent included.
func (r *Response) total() uint32 { return r.sent + r.Packets }

func (r *Response) end() uint32 { return wire.PSNAdd(r.PSN, r.Packets) }

// again is the response once more.
func (r *Response) again(msn uint32) Response {
	a := *r
	a.replay, a.MSN = true, msn
	return a
}

// readAgain is the response to a READ that repeats this one from a later packet on, or from the
// first.
func (r *Response) readAgain(p *wire.Packet, into, packets, msn uint32) Response {
	return Response{Kind: Read, replay: true, partial: into > 0, PSN: p.PSN, Packets: packets, MSN: msn, RETH: p.RETH, Owner: r.Owner}
}

// next notes that packets with n bytes of data together were sent.
func (r *Response) next(packets, n uint32) {
	r.sent += packets
	r.Packets -= packets
	r.PSN = wire.PSNAdd(r.PSN, packets)
	r.RETH.Addr += uint64(n)
	r.RETH.Length -= n
}

// executed notes that the request, which was deferred, is executed.
func (r *Response) executed(orig uint64) { r.Deferred, r.Orig = false, orig }

// pending is the responses that are still to be sent, by PSN.
type pending struct {
	queue []Response // at most three times the limit of outstanding READs, and maxReplays
}

func (p *pending) init(limit uint8) { p.queue = make([]Response, 0, 2*int(limit)) }

// original is how many of them are not asked for again.
func (p *pending) original() (n int) {
	for i := range p.queue {
		if !p.queue[i].replay {
			n++
		}
	}
	return n
}

// deferred reports whether requests are still to be executed.
func (p *pending) deferred() bool {
	for i := range p.queue {
		if p.queue[i].Deferred {
			return true
		}
	}
	return false
}

// covers reports whether n responses of a READ from psn on are still to be sent.
func (p *pending) covers(psn, n uint32) bool {
	return slices.ContainsFunc(p.queue, func(r Response) bool {
		return r.Kind == Read && wire.PSNDiff(psn, r.PSN) >= 0 && wire.PSNDiff(wire.PSNAdd(psn, n), r.end()) <= 0
	})
}

// insert queues a response by its PSN, in place of those that it repeats. Repetitions cannot make
// the queue grow: they are dropped when it is full, as if lost.
func (p *pending) insert(r *Response, limit uint8) {
	if n := len(p.queue); !r.replay && (n == 0 || wire.PSNDiff(r.PSN, p.queue[n-1].end()) >= 0) { // as most are
		p.queue = append(p.queue, *r)
		return
	}
	p.queue = slices.DeleteFunc(p.queue, func(o Response) bool {
		return wire.PSNDiff(o.PSN, r.end()) < 0 && wire.PSNDiff(r.PSN, o.end()) < 0
	})
	if r.replay && len(p.queue) >= 2*int(limit)+maxReplays {
		return
	}
	i := 0
	for i < len(p.queue) && wire.PSNDiff(p.queue[i].PSN, r.PSN) < 0 {
		i++
	}
	p.queue = slices.Insert(p.queue, i, *r)
}

// pop takes the first off.
func (p *pending) pop() {
	if len(p.queue) == 1 { // as it mostly is
		p.queue[0].Owner = nil
		p.clear()
		return
	}
	p.queue = slices.Delete(p.queue, 0, 1)
}

// clear takes all off.
func (p *pending) clear() { p.queue = p.queue[:0] }
