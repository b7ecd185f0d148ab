// Package ipid judges IPv4 identifications that were computed from a packet's ICRC
// (wire.SolveID), not read from a header. This is needed if packets come from a socket.
//
// The computation uses 16 of the ICRC's 32 bits: a damaged packet has a matching identification
// with a probability of 1 in 65,536. But senders count, so only few identifications are plausible.
// Linux counts all packets from one address to another. Package netstack counts those of each path,
// which has its own source port. Peers therefore stores the last identification in order of each
// pair of addresses and of each [Flow], and accepts only identifications close to one of the two.
// That leaves 22.7 bits, or 22.1 next to other traffic, and 16 for first packets.
//
// # Accepted identifications
//
//   - First packet of a flow: any identification. Nothing is known yet, and 16 bits are left.
//   - Later packets: from [Behind] before the last one, for reordered packets, to [Ahead] after it,
//     for lost ones. The last one is that of the flow or of the pair of addresses.
//   - After an idle time: [PerSecond] more for each second since the last one. Linux adds a random
//     number to its counter, of at most the timer ticks since its last use, which are 1000 per
//     second or fewer. After a minute, any identification is accepted again. Packets within the
//     next [Backlog] have the same range as the first: if this process did not run, they may have
//     waited together, and the sender's idle time may be between them.
//   - After a jump, because more than Ahead packets were lost or the peer restarted: the first
//     packet is refused, and its identification becomes the candidate. A packet that follows the
//     candidate within [Ahead] and [Probation] is accepted, as in RTP for sequence numbers (RFC
//     3550 §A.1). The refused packet is retransmitted like a lost one.
//
// # Updates
//
// An accepted identification does not move the window yet. It becomes the last one of the flow and
// of the pair when [Peers.Advance] confirms that address, QP number and PSN were right too. A
// forger who does not know the PSN can therefore neither move the window away from the true peer,
// nor create entries for peers that do not exist. It can replace the candidate. In this case, a
// peer whose counter has jumped is recognized only when idle time has widened the window, after at
// most 66 seconds.
//
// # Other traffic of the peer
//
// A peer that counts all packets to an address, like Linux, may send thousands of datagrams and
// unreliable packets between two packets in order of a reliable connection. A peer that sends
// faster than this side can receive retransmits as many, or sends them after a gap. [Peers.Note]
// records the identification of such a packet for the pair of addresses. Identifications close to
// it are accepted too. It does not replace the last one: it widens the accepted range, and never
// narrows it. Such packets can be forged without knowing the expected PSN. This causes no refusal
// of the true peer's packets, except of those that only the note would have allowed. Without a
// packet in order of a reliable connection, nothing is recorded.
//
// This does not protect against forgery: the ICRC has no key, and a forger may choose the
// identification too. It detects damage.
package ipid

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// The limits of the accepted range.
const (
	Ahead     = 256
	Behind    = 64
	PerSecond = 1000
	Probation = time.Second
	Backlog   = 100 * time.Millisecond
)

// MaxPeers is the largest number of stored flows and pairs of addresses. Beyond it, the least
// recently used one is dropped, and the next packet of its flow is a first one.
const MaxPeers = 4096

// Flow identifies packets from one address and UDP port to another address.
type Flow struct {
	Src, Dst netip.Addr
	SrcPort  uint16 // 0 for all packets between the two addresses
}

// pair identifies all packets between the addresses.
func (f Flow) pair() Flow { return Flow{Src: f.Src, Dst: f.Dst} }

// Peers stores the identifications of peers. The zero value is empty and ready for use. Its methods
// may be called from any goroutine.
type Peers struct {
	mu    sync.Mutex
	flows map[Flow]*list.Element // of peer
	order list.List              // most recently used first
}

type peer struct {
	flow      Flow
	last      uint16
	at        time.Duration // time of last
	idle      time.Duration // longest idle time that ended within the last Backlog
	idleEnd   time.Duration // end of that idle time
	candidate uint16
	since     time.Duration // time of the candidate; 0 if there is none
	noted     uint16        // of a pair: recorded by Note
	notedAt   time.Duration // time of noted; 0 if there is none
}

// Accept reports whether an identification computed from a packet is plausible. Times are of one
// monotonic clock, and not 0.
func (p *Peers) Accept(f Flow, id uint16, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.flows[f]
	if e == nil {
		return true
	}
	r := e.Value.(*peer)
	if r.within(id, now) {
		return true
	}
	if e := p.flows[f.pair()]; e != nil {
		if pair := e.Value.(*peer); pair.within(id, now) || pair.notedAt != 0 && within(id, pair.noted, now-pair.notedAt) {
			return true
		}
	}
	after := id - r.candidate
	if r.since != 0 && now-r.since <= Probation && after > 0 && after <= Ahead {
		return true
	}
	r.candidate, r.since = id, now
	return false
}

// within reports whether an identification is close enough to the last one.
func (r *peer) within(id uint16, now time.Duration) bool {
	ago := now - r.at
	if now-r.idleEnd <= Backlog {
		ago += r.idle
	}
	return within(id, r.last, ago)
}

// within reports whether an identification is close enough to an earlier one.
func within(id, last uint16, ago time.Duration) bool {
	// The time is limited first, as the idle time may be years.
	ahead := Ahead + int(min(max(ago, 0), 100*time.Second)*PerSecond/time.Second)
	return int(id-last) <= ahead || last-id <= Behind
}

// Note records the identification of an accepted packet that was not the next one of a reliable
// connection.
func (p *Peers) Note(f Flow, id uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.flows[f.pair()]; e != nil {
		r := e.Value.(*peer)
		r.noted, r.notedAt = id, now
	}
}

// Advance records the identification of a packet that was in order in every other respect too.
func (p *Peers) Advance(f Flow, id uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(f, id, now)
	p.set(f.pair(), id, now)
}

// set stores the last identification. mu is held.
func (p *Peers) set(f Flow, id uint16, now time.Duration) {
	e := p.flows[f]
	switch {
	case e != nil:
		p.order.MoveToFront(e)
	case len(p.flows) >= MaxPeers:
		e = p.order.Back()
		delete(p.flows, e.Value.(*peer).flow)
		p.order.MoveToFront(e)
		p.flows[f] = e
	default:
		if p.flows == nil {
			p.flows = map[Flow]*list.Element{}
		}
		e = p.order.PushFront(new(peer))
		p.flows[f] = e
	}
	r := e.Value.(*peer)
	if r.flow != f {
		*r = peer{flow: f, at: now}
	}
	if idle := now - r.at; idle >= r.idle || now-r.idleEnd > Backlog {
		r.idle, r.idleEnd = idle, now
	}
	r.last, r.at, r.since = id, now, 0
}

// Len returns the number of stored flows and pairs.
func (p *Peers) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flows)
}
