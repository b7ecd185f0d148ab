// Package ipid judges IPv4 identifications that were not seen in a header but solved from a
// packet's ICRC ([wire.SolveID]), as it has to be where packets come from a socket.
//
// Solving takes 16 of the ICRC's 32 bits: a damaged packet has some identification under which it
// is right once in 65,536 times. But a sender counts, so that only few identifications are likely.
// Linux counts all packets from one address to another, package netstack those of each path, which
// has a source port of its own. So Peers knows the last identification that was in order of each
// pair of addresses, and of each [Flow], and accepts only those near one of the two. That leaves
// 22.7 bits, or 22.1 beside others, and 16 for first packets.
//
// # What is accepted
//
//   - The first packet of a flow: any identification. Nothing is known yet, and 16 bits are left.
//   - After that: from [Behind] before the last one, for packets that were overtaken, to [Ahead]
//     after it, for those that were lost. The last one is the flow's or that of the pair of
//     addresses.
//   - After silence: [PerSecond] more for each second since the last one. Linux adds a random
//     number to its counter, of at most the timer ticks since it was used last, which are 1000 a
//     second or fewer. After a minute it is any again. The packets of the next [Backlog] have what
//     the first had: if this process had no processor, they may have waited together, and the
//     sender's silence have been between them.
//   - After a jump, because more packets were lost than Ahead, or the peer has started anew: the
//     first packet is refused, and its identification kept as a candidate. One that follows the
//     candidate within [Ahead], and within [Probation], is accepted, as RTP does it with sequence
//     numbers (RFC 3550 §A.1). The refused packet is sent again as a lost one is.
//
// # What moves it
//
// An identification that is accepted does not move the window yet. It becomes the last one of the
// flow and of the pair when [Peers.Passed] says that all else was right: addresses, QP number and
// PSN. So somebody who makes up packets without knowing the PSN cannot move the window away from
// the true peer, and makes no entries for peers that do not exist. He can replace the candidate:
// while he does so, a peer whose counter has jumped is not recognised until silence has widened the
// window, which takes at most 66 seconds.
//
// # Beside many others
//
// A peer that counts all packets to an address, as Linux does, may send thousands of datagrams and
// packets of unreliable connections between two packets of a reliable one that are in order. If it
// is sent to faster than it can receive, it repeats as many that have been received, or sends what
// is behind a gap. [Peers.Seen] notes the identification of such a packet for the pair of
// addresses, and those near it are accepted too. This is no last one: it widens what is accepted,
// and takes nothing away. So somebody who makes up such packets, which takes no PSN that is
// expected, does not have the true peer's packets refused, but those that only this note would have
// had accepted. Where no packet of a reliable connection has passed, nothing is noted.
//
// None of this is a defence against forgery: the ICRC has no key, and whoever makes up a packet may
// choose its identification too. It is to find damage.
package ipid

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// The bounds of what is accepted.
const (
	Ahead     = 256
	Behind    = 64
	PerSecond = 1000
	Probation = time.Second
	Backlog   = 100 * time.Millisecond
)

// MaxPeers is how many flows and pairs of addresses are remembered. Beyond, the one that was heard
// of least recently is forgotten; the next packet of a flow is then a first one.
const MaxPeers = 4096

// Flow is packets from one address and UDP port to another address.
type Flow struct {
	Src, Dst netip.Addr
	SrcPort  uint16 // 0 stands for all packets between the two addresses
}

// pair is all packets between the addresses.
func (f Flow) pair() Flow { return Flow{Src: f.Src, Dst: f.Dst} }

// Peers are those of whom identifications were solved. The zero value knows none and is ready for
// use. Its methods may be called from any goroutine.
type Peers struct {
	mu    sync.Mutex
	flows map[Flow]*list.Element // of peer
	order list.List              // those heard of most recently first
}

type peer struct {
	flow      Flow
	last      uint16
	at        time.Duration // when last was set
	silence   time.Duration // the longest that ended within the last Backlog
	ended     time.Duration // when it did
	candidate uint16
	since     time.Duration // when the candidate was set; 0 if there is none
	seen      uint16        // of a pair: the last one of a packet that was not the next of a reliable connection
	seenAt    time.Duration // 0 if there is none
}

// Accept reports whether an identification, solved from a packet that came at a time, is plausible.
// Times are those of one monotonic clock, and not 0.
func (p *Peers) Accept(f Flow, id uint16, now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.flows[f]
	if e == nil {
		return true
	}
	r := e.Value.(*peer)
	if r.near(id, now) {
		return true
	}
	if e := p.flows[f.pair()]; e != nil {
		if pair := e.Value.(*peer); pair.near(id, now) || pair.seenAt != 0 && near(id, pair.seen, now-pair.seenAt) {
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

// near reports whether an identification is close enough to the last one.
func (r *peer) near(id uint16, now time.Duration) bool {
	ago := now - r.at
	if now-r.ended <= Backlog {
		ago += r.silence
	}
	return near(id, r.last, ago)
}

// near reports whether an identification is close enough to one that came some time ago.
func near(id, last uint16, ago time.Duration) bool {
	// The time is limited first: silence may have lasted for years.
	ahead := Ahead + int(min(max(ago, 0), 100*time.Second)*PerSecond/time.Second)
	return int(id-last) <= ahead || last-id <= Behind
}

// Seen says that the packet with that identification, which was accepted, was another than the next
// one of a reliable connection.
func (p *Peers) Seen(f Flow, id uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.flows[f.pair()]; e != nil {
		r := e.Value.(*peer)
		r.seen, r.seenAt = id, now
	}
}

// Passed says that the packet with that identification was in order in every other respect too.
func (p *Peers) Passed(f Flow, id uint16, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(f, id, now)
	p.set(f.pair(), id, now)
}

// set remembers the last identification. mu is held.
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
	if silence := now - r.at; silence >= r.silence || now-r.ended > Backlog {
		r.silence, r.ended = silence, now
	}
	r.last, r.at, r.since = id, now, 0
}

// Len is how many flows and pairs are remembered.
func (p *Peers) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flows)
}
