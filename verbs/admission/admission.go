// Package admission limits what the peers of a server hold at a time, so that none can keep the
// server from the others.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package admission

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
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

// ErrGone is the error of WaitFor for a peer that waits no more.
var ErrGone = errors.New("the peer has gone before it got a place")

// Gate has the places of a server, mostly for connections. A peer, such as an address, has its
// Share of them at most. A place is a stranger's until Prove is called: strangers make room for
// newcomers, so that connections on which nothing useful happens keep nobody out.
type Gate[P comparable] struct {
	limit int

	mu        sync.Mutex
	peers     map[P]*peer[P]
	held      int // places, without those that are leaving
	strangers int
	leaving   int         // displaced places whose user has not left
	queue     []*Place[P] // those that wait until fewer are leaving, first come first
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
	g      *Gate[P]
	peer   P
	end    func() // nil after Prove, Leave and displacement
	number uint64
	state  state

	decided chan struct{} // closed when it waits no more; nil if it never did
	refusal error         // why it waits, or, after that, was refused
}

// state is how far a place has come.
type state uint8

const (
	waiting state = iota // in the queue
	taken
	leaving // displaced
	left
	lost // left after it was displaced, or refused
)

// New returns a Gate of a number of places, 1 at least.
func New[P comparable](limit int) *Gate[P] {
	return &Gate[P]{limit: limit, peers: map[P]*peer[P]{}}
}

// Enter takes a place for a peer, which may be used when Wait has returned. end is called at most
// once, on any goroutine and with no lock held, if the place is a stranger's and is needed for
// another: its user then leaves soon.
//
// If the peer has its share, its oldest stranger ends. If all places are taken, or the peer has no
// stranger and less than its share of what strangers do not hold, the oldest of the peer with most
// strangers ends, provided that more than half of the places are strangers'. Otherwise the error
// is ErrShare or ErrFull. The users of displaced places leave in their own time: at most half as
// many as there are places. Then a newcomer that needs another's place waits. As many may wait. If
// one more comes, the peer of which most wait loses the last to come, or the newcomer if it has as
// many.
func (g *Gate[P]) Enter(of P, end func()) (*Place[P], error) {
	g.mu.Lock()
	at := &Place[P]{g: g, peer: of, end: end}
	displace, mustWait, err := g.admit(at)
	if mustWait {
		err = g.wait(at, err)
	} else if err != nil {
		g.refused++
	}
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if displace != nil {
		displace()
	}
	return at, nil
}

// half is the number of displaced places whose users may leave, and of newcomers that may wait.
func (g *Gate[P]) half() int { return max(g.limit/2, 1) }

// admit takes a place, if it may be taken now. If it must wait, or is refused, err says why.
// displace is what the caller has to call without the lock, or nil. mu is held.
func (g *Gate[P]) admit(at *Place[P]) (displace func(), mustWait bool, err error) {
	p := g.peers[at.peer]
	if p == nil {
		p = &peer[P]{}
	}
	var victim *Place[P]
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
	if err != nil && (victim == nil || g.leaving >= g.half()) {
		return nil, victim != nil, err
	}
	if victim != nil {
		displace = victim.end
		g.displaced++
		g.remove(victim)
		victim.state = leaving
		g.leaving++
	}
	g.entered++
	at.number, at.state = g.entered, taken
	g.peers[at.peer] = p
	p.strangers = append(p.strangers, at)
	p.held++
	g.held++
	g.strangers++
	return displace, false, nil
}

// wait makes a newcomer wait, because of err. If too many do, one is refused with its reason, which
// wait returns if that is the newcomer. mu is held.
func (g *Gate[P]) wait(at *Place[P], err error) error {
	at.decided, at.refusal = make(chan struct{}), err
	if g.queue = append(g.queue, at); len(g.queue) <= g.half() {
		return nil
	}
	of, last := map[P]int{}, at
	for _, w := range g.queue {
		of[w.peer]++
	}
	for _, w := range g.queue {
		if of[w.peer] > of[at.peer] && of[w.peer] >= of[last.peer] {
			last = w
		}
	}
	g.decide(last, last.refusal)
	if last == at {
		return err
	}
	return nil
}

// admitWaiting admits those that have waited, as far as they may be now. It returns what the caller
// has to call without the lock. mu is held.
func (g *Gate[P]) admitWaiting() (displace []func()) {
	for i := 0; i < len(g.queue) && (g.held < g.limit || g.leaving < g.half()); {
		at := g.queue[i]
		end, mustWait, err := g.admit(at)
		if mustWait { // for the share of its peer, which others need not wait for
			i++
			continue
		}
		g.decide(at, err)
		if end != nil {
			displace = append(displace, end)
		}
	}
	return displace
}

// decide ends the wait of a place. If err is not nil, it is refused. mu is held.
func (g *Gate[P]) decide(at *Place[P], err error) {
	if at.refusal = err; err != nil {
		at.state = lost
		g.refused++
	}
	i := slices.Index(g.queue, at)
	g.queue = slices.Delete(g.queue, i, i+1)
	close(at.decided)
}

// Wait waits until the place may be used: if many were displaced, until enough of their users have
// left. After an error, which is ErrShare, ErrFull or that of ctx, it may not be used, and the
// caller calls Leave.
func (at *Place[P]) Wait(ctx context.Context) error { return at.wait(ctx, nil) }

// WaitFor is Wait in the turns of a clock. It also ends when gone is closed, because the peer has
// gone, with ErrGone.
func (at *Place[P]) WaitFor(ctx context.Context, c verbs.Clock, gone <-chan struct{}) error {
	if at.decided != nil && c.Virtual() {
		c.Park(func() bool { return wakeup.Closed(at.decided) || ctx.Err() != nil || wakeup.Closed(gone) })
	}
	return at.wait(ctx, gone)
}

// wait implements Wait and WaitFor. What was decided comes first.
func (at *Place[P]) wait(ctx context.Context, gone <-chan struct{}) error {
	if at.decided == nil {
		return nil
	}
	select {
	case <-at.decided:
	case <-ctx.Done():
	case <-gone:
	}
	switch {
	case wakeup.Closed(at.decided):
		return at.refusal
	case wakeup.Closed(gone):
		return ErrGone
	}
	return context.Cause(ctx)
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
// was displaced before, or waits.
func (at *Place[P]) Prove() bool {
	at.g.mu.Lock()
	defer at.g.mu.Unlock()
	switch {
	case at.state != taken && at.state != left:
		return false
	case at.end != nil:
		at.g.known(at.g.peers[at.peer], at)
	}
	return true
}

// Leave gives the place back, or waits for it no more. Only the first call has an effect.
func (at *Place[P]) Leave() {
	g := at.g
	g.mu.Lock()
	switch at.state {
	case waiting:
		g.decide(at, context.Canceled)
	case taken:
		g.remove(at)
		at.state = left
	case leaving:
		g.leaving--
		at.state = lost
	}
	displace := g.admitWaiting()
	g.mu.Unlock()
	for _, end := range displace {
		end()
	}
}

// Stats are the numbers of a Gate.
type Stats struct {
	Places, Held int // without those that wait
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
