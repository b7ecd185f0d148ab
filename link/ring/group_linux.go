package ring

import (
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link/idle"
)

// Group is the set of pairs of one link, including the pair to a hub if there is one. While an
// application polls the group, the pairs' goroutines sleep on their connections, and the peers do
// not wake them for frames. Run must be called.
type Group struct {
	pairs     atomic.Pointer[[]*Pair] // replaced, never modified
	watch     idle.Watch
	poller    idle.Poller
	spinner   *idle.Spinner // of the pairs' goroutines
	nextPair  atomic.Uint32 // index of the pair that the next Poll begins with
	pollBegan chan struct{} // signals the first poll
	stop      chan struct{}

	arrivals arrivals

	inPlace            atomic.Bool
	dropped, malformed atomic.Uint64
}

// NewGroup returns a group without pairs.
func NewGroup() *Group {
	g := &Group{spinner: &idle.RingReader, pollBegan: make(chan struct{}, 1), stop: make(chan struct{})}
	g.poller.Init(idle.Ring)
	g.pairs.Store(new([]*Pair))
	return g
}

// SetHub says that most frames come from a hub. It is called before the first Poll.
func (g *Group) SetHub() {
	g.spinner = &idle.HubReader
	g.poller.Init(idle.Hub)
}

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

func (g *Group) isPolled() bool { return g.watch.Polling() }

// Poll receives on the caller's goroutine. It returns false if there was nothing to receive. The
// caller calls EndPoll after the last Poll; otherwise the goroutines take over after
// idle.PollingEndsAfter.
func (g *Group) Poll() bool { return g.PollBeside(false) }

// PollBeside is Poll of an application that polls other sockets too. active says that it receives
// from these, and so is not idle.
func (g *Group) PollBeside(active bool) bool {
	if g.watch.Poll() {
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
		// Reception was handed over meanwhile: EndPoll was called, or Run saw no Poll while this thread
		// did not run. The polls above have cleared the peers' wake requests, and EndPoll would not set
		// them again.
		g.handOver()
	}
	if busy || active {
		g.poller.Found()
	} else {
		g.poller.Empty()
	}
	return busy
}

// EndPoll hands reception back to the pairs' goroutines.
func (g *Group) EndPoll() {
	if g.watch.End() {
		g.handOver()
	}
}

func (g *Group) handOver() {
	for _, p := range *g.pairs.Load() {
		p.handOver()
	}
}

// Drain receives from all pairs except one. The receiver of that pair may call it. Frames that the
// others sent earlier are then received before those of that pair.
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

// Run detects that an application has stopped polling without calling EndPoll. It returns after
// Close.
func (g *Group) Run() {
	tick := time.NewTimer(idle.PollingEndsAfter)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-g.pollBegan:
		}
		for g.isPolled() {
			if _, ended := g.watch.Look(); ended {
				g.handOver()
				break
			}
			tick.Reset(idle.PollingEndsAfter)
			select {
			case <-g.stop:
				return
			case <-tick.C:
			}
		}
	}
}
