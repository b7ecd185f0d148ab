// Package admission limits what the peers of a server hold at a time, so that none can keep the
// server from the others.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package admission

import (
	"errors"
	"slices"
	"sync"
)

// Share returns the most that a holder may have of limit things, if it has mine of the all that are
// taken: half of what the others leave, rounded up. So no number of holders takes all, until each
// half is less than one.
func Share(mine, all, limit int) int { return (limit - (all - mine) + 1) / 2 }

// Reasons for which a Gate refuses a peer.
var (
	ErrShare = errors.New("the peer has half of the places that others leave")
	ErrFull  = errors.New("all places are taken")
)

// Gate has the places of a server, mostly for connections. A peer, such as an address, has its
// Share of them at most. A place is a stranger's until Prove is called: strangers make room for
// newcomers, so that connections on which nothing useful happens keep nobody out.
type Gate[P comparable] struct {
	limit int

	mu        sync.Mutex
	peers     map[P]*peer[P]
	held      int // places, without those that are leaving
	strangers int
	leaving   int // displaced places whose user has not left
	entered   uint64
	refused   uint64
	displaced uint64
}

// peer has the places of one peer.
type peer[P comparable] struct {
	held      int
	strangers []*Place[P] // oldest first
}

// Place is a place of a peer.
type Place[P comparable] struct {
	g        *Gate[P]
	peer     P
	end      func() // nil after Prove, Leave and displacement
	number   uint64
	leaving  bool
	departed bool
}

// New returns a Gate of a number of places, 1 at least.
func New[P comparable](limit int) *Gate[P] {
	return &Gate[P]{limit: limit, peers: map[P]*peer[P]{}}
}

// Enter takes a place for a peer. end is called at most once, on any goroutine and with no lock
// held, if the place is a stranger's and is needed for another: its user then leaves soon.
//
// If the peer has its share, its oldest stranger ends. If all places are taken, or the peer has no
// stranger and less than its share of what strangers do not hold, the oldest of the peer with most
// strangers ends, provided that more than half of the places are strangers'. Otherwise the error is
// ErrShare or ErrFull. While users of displaced places leave, there are at most half as many places
// more.
func (g *Gate[P]) Enter(of P, end func()) (*Place[P], error) {
	g.mu.Lock()
	p := g.peers[of]
	if p == nil {
		p = &peer[P]{}
	}
	var victim *Place[P]
	var err error
	switch {
	case g.held >= g.limit:
		err = ErrFull
		victim = g.mostStrange()
	case p.held >= Share(p.held, g.held, g.limit):
		err = ErrShare
		if len(p.strangers) > 0 {
			victim = p.strangers[0]
		} else if p.held < Share(p.held, g.held-g.strangers, g.limit) {
			// Else a host that proves its first connection lacks its second one, as soon as
			// strangers leave a place.
			victim = g.mostStrange()
		}
	}
	if err != nil && (victim == nil || g.leaving >= max(g.limit/2, 1)) {
		g.refused++
		g.mu.Unlock()
		return nil, err
	}
	var displace func()
	if victim != nil {
		displace = victim.end
		g.displaced++
		g.remove(victim)
		victim.leaving = true
		g.leaving++
	}
	g.entered++
	at := &Place[P]{g: g, peer: of, end: end, number: g.entered}
	g.peers[of] = p
	p.strangers = append(p.strangers, at)
	p.held++
	g.held++
	g.strangers++
	g.mu.Unlock()
	if displace != nil {
		displace()
	}
	return at, nil
}

// mostStrange returns the oldest stranger of the peer with most strangers, or nil if strangers have
// half of the places at most. mu is held.
func (g *Gate[P]) mostStrange() (oldest *Place[P]) {
	if g.strangers <= g.limit/2 {
		return nil
	}
	most := 0
	for _, p := range g.peers {
		n := len(p.strangers)
		if n > most || n > 0 && n == most && p.strangers[0].number < oldest.number {
			most, oldest = n, p.strangers[0]
		}
	}
	return oldest
}

// remove takes a place from its peer. mu is held.
func (g *Gate[P]) remove(at *Place[P]) {
	p := g.peers[at.peer]
	g.known(p, at)
	p.held--
	g.held--
	if p.held == 0 {
		delete(g.peers, at.peer)
	}
}

// known removes a place from the strangers. mu is held.
func (g *Gate[P]) known(p *peer[P], at *Place[P]) {
	if i := slices.Index(p.strangers, at); i >= 0 {
		p.strangers = slices.Delete(p.strangers, i, i+1)
		g.strangers--
	}
	at.end = nil
}

// Prove says that the place is no stranger's any more: nobody displaces it. It returns false if it
// was displaced before.
func (at *Place[P]) Prove() bool {
	at.g.mu.Lock()
	defer at.g.mu.Unlock()
	if at.leaving {
		return false
	}
	if at.end != nil {
		at.g.known(at.g.peers[at.peer], at)
	}
	return true
}

// Leave gives the place back. Only the first call has an effect.
func (at *Place[P]) Leave() {
	at.g.mu.Lock()
	defer at.g.mu.Unlock()
	switch {
	case at.departed:
	case at.leaving:
		at.g.leaving--
	default:
		at.g.remove(at)
	}
	at.departed = true
}

// Stats are the numbers of a Gate.
type Stats struct {
	Places, Held int
	// Since the Gate was made:
	Refused   uint64 // calls of Enter without a place
	Displaced uint64 // strangers whose place another got
}

// Stats returns the numbers of the Gate.
func (g *Gate[P]) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{Places: g.limit, Held: g.held + g.leaving, Refused: g.refused, Displaced: g.displaced}
}
