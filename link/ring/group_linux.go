package ring

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link/rest"
)

// Group is the pairs of one link, and the connection to a hub if there is one, which are received from together. It knows whether
// an application polls them in place of the pairs' goroutines, which then sleep on their connections without asking to be woken by
// frames. Run must be called.
type Group struct {
	pairs   atomic.Pointer[[]*Pair] // replaced, never changed
	polling atomic.Uint32           // notPolled, polled or watched
	idle    atomic.Uint32           // polls that found nothing
	vain    rest.Vain               // since when they all have
	yields  uint32                  // of so many of them one lets others run
	hub     bool                    // many frames come from a hub
	turn    atomic.Uint32           // which pair the next Poll begins with
	began   chan struct{}           // there was a first poll
	stop    chan struct{}

	arrivals arrivals

	inPlace            atomic.Bool
	dropped, malformed atomic.Uint64
}

// NewGroup makes a group without pairs.
func NewGroup() *Group {
	g := &Group{yields: yieldPolls, began: make(chan struct{}, 1), stop: make(chan struct{})}
	g.pairs.Store(new([]*Pair))
	return g
}

// FilledByHub says that many of the frames come from a hub. It is called before the first Poll.
func (g *Group) FilledByHub() { g.yields, g.hub = hubYieldPolls, true }

// Set says which pairs there are. The slice must not be changed any more.
func (g *Group) Set(all []*Pair) {
	g.pairs.Store(&all)
	g.arrivals.change(all)
}

// TakeInPlace has pairs that are served from now on take frames without an ICRC, whose More is in memory that the other side can
// still change. Without it such frames are dropped, as malformed.
func (g *Group) TakeInPlace() { g.inPlace.Store(true) }

// Dropped is how many frames were lost because nobody had room for them.
func (g *Group) Dropped() uint64 { return g.dropped.Load() }

// Malformed is how many frames were received whose fields contradicted each other, and how many rings were given up.
func (g *Group) Malformed() uint64 { return g.malformed.Load() }

// Values of Group.polling. Who polls sets polled; Run sets watched when it looks, and hands reception over to the
// goroutines if it finds watched the next time.
const (
	notPolled = iota
	polled
	watched
)

// nap is how often Run looks: longer than an application is busy sending between two polls.
const nap = time.Millisecond

// While polls find nothing, another thread is let run on this processor once in yieldPolls, or where a hub fills the rings, which
// often has the same processor, once in hubYieldPolls; and another goroutine once in goschedPolls. A look at the rings takes less
// than either. After a while they sleep.
const (
	yieldPolls    = 32
	hubYieldPolls = 8
	goschedPolls  = 4096
)

func (g *Group) isPolled() bool { return g.polling.Load() != notPolled }

// Poll receives what has come, on the goroutine of the caller; false if there was nothing. After the last Poll, EndPoll is to be
// called, or the goroutines take over a little later.
func (g *Group) Poll() bool {
	if g.polling.Load() != polled && g.polling.Swap(polled) == notPolled { // a store alone would take the cache line from others
		select {
		case g.began <- struct{}{}:
		default:
		}
	}
	all := *g.pairs.Load()
	busy, first := false, 0
	if len(all) > 1 {
		first = int(g.turn.Add(1) % uint32(len(all)))
	}
	for i := range all {
		busy = all[(first+i)%len(all)].poll() || busy
	}
	if !g.isPolled() {
		// Meanwhile another has called EndPoll, or Run has seen no Poll for long, as this thread was not running: reception
		// was handed over, and taken back by the polls above. This program's EndPoll would not do it again.
		g.handOver()
	}
	if busy {
		g.vain.Found()
		return true
	}
	n := g.idle.Add(1)
	if n%g.yields != 0 {
		return false
	}
	resting := g.vain.In()
	switch {
	case (resting || n%goschedPolls == 0) && !hasSpareProcs() || hasOneProcessor():
		g.giveWay()
	case !resting:
		rest.Yield()
	}
	if resting {
		g.vain.Sleep()
	}
	return false
}

// hasOneProcessor tells whether this process may use one processor only.
func hasOneProcessor() bool { return runtime.GOMAXPROCS(0) == 1 }

// hasSpareProcs tells whether more goroutines may run at a time than there are processors, as where threads of C call Go and each
// is counted (cmd/libsoftrnic): then no goroutine needs a poller's place. To such a thread runtime.Gosched would mean a sleep, as
// another thread of Go's takes over, and wakes it when its turn comes.
func hasSpareProcs() bool { return runtime.GOMAXPROCS(0) > runtime.NumCPU() }

// giveWay lets other goroutines run. Where this process has one processor, and a hub fills the rings, it lets other processes run
// too: a hub that has the same processor must run before there is anything in them. Without a hub the other side of a ring most
// likely has a processor of its own, and on a busy machine this one would be given to somebody else for milliseconds.
func (g *Group) giveWay() {
	runtime.Gosched()
	if g.hub && hasOneProcessor() {
		rest.Yield()
	}
}

// EndPoll has the goroutines receive again.
func (g *Group) EndPoll() {
	if g.polling.Swap(notPolled) != notPolled {
		g.handOver()
	}
}

func (g *Group) handOver() {
	for _, p := range *g.pairs.Load() {
		p.handOver()
	}
}

// Drain receives what has come through all pairs but one, whose receiver may call it: what that one brings is later than what
// came through the others before.
func (g *Group) Drain(but *Pair) {
	for _, p := range *g.pairs.Load() {
		if p != but {
			_ = p.drain() // the pair's own goroutine finds out what is wrong with a ring
		}
	}
}

// Wait waits until what is being received now has been handed to the receivers.
func (g *Group) Wait() {
	for _, p := range *g.pairs.Load() {
		p.wait()
	}
}

// Close has Run return.
func (g *Group) Close() { close(g.stop) }

// Run finds out when an application has ended to poll without a word, until Close.
func (g *Group) Run() {
	tick := time.NewTimer(nap)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-g.began:
		}
		for g.isPolled() {
			if !g.polling.CompareAndSwap(polled, watched) && g.polling.CompareAndSwap(watched, notPolled) {
				g.handOver()
				break
			}
			tick.Reset(nap)
			select {
			case <-g.stop:
				return
			case <-tick.C:
			}
		}
	}
}
