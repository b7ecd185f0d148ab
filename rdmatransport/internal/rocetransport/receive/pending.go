package receive

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Kind is the kind of a response.
type Kind uint8

const (
	Read   Kind = iota
	Atomic      // with the previous content of memory
	Empty       // FLUSH and ATOMIC WRITE: a READ response without payload
)

// Response is the response to a READ, atomic, FLUSH or ATOMIC WRITE.
type Response struct {
	Kind     Kind
	Deferred bool      // the request is still to be executed
	replay   bool      // a response to a duplicate request
	partial  bool      // it repeats the end of a READ, without its first packet
	MSN      uint32    // messages completed with the request
	PSN      uint32    // of the next packet
	Packets  uint32    // not yet sent
	sent     uint32    // packets that are sent
	RETH     wire.RETH // READ: the part not yet read
	Orig     uint64    // Atomic: the previous content of memory, once executed
	Owner    any       // for the owner's use
}

// First reports whether the next packet is the first of the response.
func (r *Response) First() bool { return r.sent == 0 && !r.partial }

// Replay reports whether it answers a duplicate of a request that was answered before.
func (r *Response) Replay() bool { return r.replay }

// number sets the first PSN, the number of packets and the MSN.
func (r *Response) number(psn, packets, msn uint32) { r.PSN, r.Packets, r.MSN = psn, packets, msn }

// total is the number of all packets, sent or not.
func (r *Response) total() uint32 { return r.sent + r.Packets }

func (r *Response) end() uint32 { return wire.PSNAdd(r.PSN, r.Packets) }

// again returns the response to a duplicate of the request.
func (r *Response) again(msn uint32) Response {
	a := *r
	a.replay, a.MSN = true, msn
	return a
}

// readAgain returns the response to a READ that repeats this one, in full or from a later packet.
func (r *Response) readAgain(p *wire.Packet, into, packets, msn uint32) Response {
	return Response{Kind: Read, replay: true, partial: into > 0, PSN: p.PSN, Packets: packets, MSN: msn, RETH: p.RETH, Owner: r.Owner}
}

// next records that packets with n bytes of payload in total were sent.
func (r *Response) next(packets, n uint32) {
	r.sent += packets
	r.Packets -= packets
	r.PSN = wire.PSNAdd(r.PSN, packets)
	r.RETH.Addr += uint64(n)
	r.RETH.Length -= n
}

// executed records that the deferred request was executed.
func (r *Response) executed(orig uint64) { r.Deferred, r.Orig, r.Owner = false, orig, nil }

// pending is the queue of responses to be sent, by PSN.
type pending struct {
	queue []Response // at most three times the limit of outstanding READs, and maxReplays
}

func (p *pending) init(limit uint8) { p.queue = make([]Response, 0, 2*int(limit)) }

// original returns the number of responses to requests that are not duplicates.
func (p *pending) original() (n int) {
	for i := range p.queue {
		if !p.queue[i].replay {
			n++
		}
	}
	return n
}

// deferred reports whether any request is not yet executed.
func (p *pending) deferred() bool {
	for i := range p.queue {
		if p.queue[i].Deferred {
			return true
		}
	}
	return false
}

// covers reports whether n responses of a READ from psn on are still queued.
func (p *pending) covers(psn, n uint32) bool {
	return slices.ContainsFunc(p.queue, func(r Response) bool {
		return r.Kind == Read && wire.PSNDiff(psn, r.PSN) >= 0 && wire.PSNDiff(wire.PSNAdd(psn, n), r.end()) <= 0
	})
}

// insert queues a response by its PSN and replaces those that it repeats. Duplicates are dropped
// when the queue is full, as if they were lost. So they cannot make it grow without limit.
func (p *pending) insert(r *Response, limit uint8) {
	// The common case.
	if n := len(p.queue); !r.replay && (n == 0 || wire.PSNDiff(r.PSN, p.queue[n-1].end()) >= 0) {
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

// pop removes the first response.
func (p *pending) pop() {
	if len(p.queue) == 1 { // the common case
		p.queue[0].Owner = nil
		p.clear()
		return
	}
	p.queue = slices.Delete(p.queue, 0, 1)
}

// clear removes all responses.
func (p *pending) clear() { p.queue = p.queue[:0] }
