package shm

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// poller knows whether an application polls the link in place of the peers' goroutines, which then sleep on their connections
// without asking to be woken by frames.
type poller struct {
	polling atomic.Uint32 // notPolled, polled or watched
	idle    atomic.Uint32 // polls that found nothing
	turn    atomic.Uint32 // which peer the next Poll begins with
	began   chan struct{} // there was a first poll
}

// Values of poller.polling. Who polls sets polled; watchPolling sets watched when it looks, and hands reception over to the
// goroutines if it finds watched the next time.
const (
	notPolled = iota
	polled
	watched
)

// nap is how often watchPolling looks: longer than an application is busy sending between two polls.
const nap = time.Millisecond

// While polls find nothing, another thread is let run on this processor once in yieldPolls, and another goroutine once in
// goschedPolls. A look at the rings takes less than either.
const (
	yieldPolls   = 32
	goschedPolls = 4096
)

func (s *poller) isPolled() bool { return s.polling.Load() != notPolled }

// Poll implements link.Poller.
func (s *segment) Poll() bool {
	if s.polling.Load() != polled && s.polling.Swap(polled) == notPolled { // a store alone would take the cache line from others
		select {
		case s.began <- struct{}{}:
		default:
		}
	}
	t := s.peers.Load()
	if t == nil {
		return false
	}
	busy, first := false, 0
	if len(t.all) > 1 {
		first = int(s.turn.Add(1) % uint32(len(t.all)))
	}
	for i := range t.all {
		busy = t.all[(first+i)%len(t.all)].poll() || busy
	}
	if !s.isPolled() {
		// Meanwhile another has called EndPoll, or watchPolling has seen no Poll for long, as this thread was not running: reception
		// was handed over, and taken back by the polls above. This program's EndPoll would not do it again.
		s.handOver()
	}
	if busy {
		return true
	}
	switch n := s.idle.Add(1); {
	case n%goschedPolls == 0 || n%yieldPolls == 0 && runtime.GOMAXPROCS(0) == 1:
		runtime.Gosched()
	case n%yieldPolls == 0:
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// EndPoll implements link.Poller.
func (s *segment) EndPoll() {
	if s.polling.Swap(notPolled) != notPolled {
		s.handOver()
	}
}

func (s *segment) handOver() {
	if t := s.peers.Load(); t != nil {
		for _, p := range t.all {
			p.handOver()
		}
	}
}

// watchPolling finds out when an application has ended to poll without a word.
func (s *segment) watchPolling() {
	tick := time.NewTimer(nap)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.began:
		}
		for s.isPolled() {
			if !s.polling.CompareAndSwap(polled, watched) && s.polling.CompareAndSwap(watched, notPolled) {
				s.handOver()
				break
			}
			tick.Reset(nap)
			select {
			case <-s.stop:
				return
			case <-tick.C:
			}
		}
	}
}
