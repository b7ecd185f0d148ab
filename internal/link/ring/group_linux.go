package ring

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/internal/idle"
)

// Group is the set of pairs of one link, including the pair to a hub if there is one. While an
// application polls the group, the pairs' goroutines sleep on their connections, and the peers do
// not wake them for frames. Run must be called.
type Group struct {
	pairs         atomic.Pointer[[]*Pair] // replaced, never modified
	polling       atomic.Uint32           // notPolled, polled or pollStale
	emptyPolls    atomic.Uint32           // polls that found nothing
	backoff       idle.Backoff            // since when no poll has found anything
	yieldInterval uint32                  // one empty poll in so many lets other threads run
	hub           bool                    // a hub fills most of the rings
	nextPair      atomic.Uint32           // index of the pair that the next Poll begins with
	pollBegan     chan struct{}           // signals the first poll
	stop          chan struct{}

	arrivals arrivals

	inPlace            atomic.Bool
	dropped, malformed atomic.Uint64
}

// NewGroup returns a group without pairs.
func NewGroup() *Group {
	g := &Group{yieldInterval: pollsPerYield, pollBegan: make(chan struct{}, 1), stop: make(chan struct{})}
	g.pairs.Store(new([]*Pair))
	return g
}

// SetHub says that most frames come from a hub. It is called before the first Poll.
func (g *Group) SetHub() { g.yieldInterval, g.hub = hubPollsPerYield, true }

// Set replaces the pairs. The caller must not modify the slice afterwards.
func (g *Group) Set(all []*Pair) {
	g.pairs.Store(&all)
	g.arrivals.update(all)
}

// AllowInPlace lets pairs that are served from now on receive frames without an ICRC, whose More is
// in memory that the peer can still change. Otherwise such frames are dropped as malformed.
func (g *Group) AllowInPlace() { g.inPlace.Store(true) }

// Dropped returns the number of frames that were lost because neither the ring nor the queue had
// room.
func (g *Group) Dropped() uint64 { return g.dropped.Load() }

// Malformed returns the number of received frames with contradictory fields, plus the number of
// corrupt rings.
func (g *Group) Malformed() uint64 { return g.malformed.Load() }

// Values of Group.polling. Poll sets polled. Run changes polled to pollStale, and if no Poll has
// happened by its next look, it hands reception back to the goroutines.
const (
	notPolled = iota
	polled
	pollStale
)

// pollTimeout is how often Run looks for polls. It is longer than an application usually sends
// between two polls.
const pollTimeout = time.Millisecond

// One empty poll in pollsPerYield yields the thread. It is one in hubPollsPerYield where a hub
// fills the rings, because the hub often runs on the same processor. One in pollsPerGosched yields
// to other goroutines. Looking at the rings costs less than either. A group that stays idle sleeps.
const (
	pollsPerYield    = 32
	hubPollsPerYield = 8
	pollsPerGosched  = 4096
)

func (g *Group) isPolled() bool { return g.polling.Load() != notPolled }

// Poll receives on the caller's goroutine. It returns false if there was nothing to receive. The
// caller calls EndPoll after the last Poll; otherwise the goroutines take over after pollTimeout.
func (g *Group) Poll() bool {
	if g.polling.Load() != polled && g.polling.Swap(polled) == notPolled { // a plain store would take the cache line from other pollers
		select {
		case g.pollBegan <- struct{}{}:
		default:
		}
	}
	all := *g.pairs.Load()
	busy, first := false, 0
	if len(all) > 1 {
		first = int(g.nextPair.Add(1) % uint32(len(all)))
	}
	for i := range all {
		busy = all[(first+i)%len(all)].poll() || busy
	}
	if !g.isPolled() {
		// Reception was handed over meanwhile: somebody called EndPoll, or Run saw no Poll
		// while this thread did not run. The polls above have cleared the peers' wake
		// requests, and EndPoll would not set them again.
		g.handOver()
	}
	if busy {
		g.backoff.Reset()
		return true
	}
	n := g.emptyPolls.Add(1)
	if n%g.yieldInterval != 0 {
		return false
	}
	idling := g.backoff.Idle()
	switch {
	case (idling || n%pollsPerGosched == 0) && !hasSpareProcs() || hasOneProcessor():
		g.yield()
	case !idling:
		idle.YieldThread()
	}
	if idling {
		g.backoff.Sleep()
	}
	return false
}

// hasOneProcessor reports whether GOMAXPROCS is 1.
func hasOneProcessor() bool { return runtime.GOMAXPROCS(0) == 1 }

// hasSpareProcs reports whether GOMAXPROCS exceeds the number of CPUs. cmd/libsoftrnic sets it so,
// because every C thread in Go counts as one. Then no goroutine needs the poller's P. On such a
// thread runtime.Gosched costs a sleep: the runtime hands the P to another thread, which must wake
// this one.
func hasSpareProcs() bool { return runtime.GOMAXPROCS(0) > runtime.NumCPU() }

// yield lets other goroutines run. With one P and a hub, it also yields the thread: a hub on the
// same processor must run before frames arrive. Without a hub the peer most likely has a processor
// of its own. A yield could then cost milliseconds on a busy machine.
func (g *Group) yield() {
	runtime.Gosched()
	if g.hub && hasOneProcessor() {
		idle.YieldThread()
	}
}

// EndPoll hands reception back to the pairs' goroutines.
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

// Drain receives from all pairs except one, whose receiver may call it. What the others sent before
// then precedes what that pair delivers.
func (g *Group) Drain(except *Pair) {
	for _, p := range *g.pairs.Load() {
		if p != except {
			_ = p.drain() // the pair's own goroutine reports a corrupt ring
		}
	}
}

// Wait waits until the receivers that are running now have returned.
func (g *Group) Wait() {
	for _, p := range *g.pairs.Load() {
		p.wait()
	}
}

// Close ends Run.
func (g *Group) Close() { close(g.stop) }

// Run notices when an application stops polling without calling EndPoll. It returns after Close.
func (g *Group) Run() {
	tick := time.NewTimer(pollTimeout)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-g.pollBegan:
		}
		for g.isPolled() {
			if !g.polling.CompareAndSwap(polled, pollStale) && g.polling.CompareAndSwap(pollStale, notPolled) {
				g.handOver()
				break
			}
			tick.Reset(pollTimeout)
			select {
			case <-g.stop:
				return
			case <-tick.C:
			}
		}
	}
}
