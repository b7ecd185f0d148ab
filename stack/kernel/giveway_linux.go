package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveWay has the goroutines of streams run while an application polls and Go has one processor. Go's scheduler asks the kernel
// which sockets are ready only when no goroutine can run, or after 10 ms: one that polls always can. So the poller asks, with an
// epoll of its own, and if there is something waits until the goroutine that it is for has been there.
type giveWay struct {
	streams atomic.Int32
	empty   atomic.Uint32 // polls that found nothing
	waiting atomic.Bool
	passed  chan struct{}

	mu    sync.Mutex // of what follows; held by who waits
	epoll int        // of the streams' sockets; -1: there is none
	timer *time.Timer
}

const (
	giveWayPolls = 4 // an empty poll in so many asks
	giveWayTime  = 100 * time.Microsecond
)

func newGiveWay() *giveWay {
	g := &giveWay{passed: make(chan struct{}, 1), timer: time.NewTimer(0)}
	var err error
	if g.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		g.epoll = -1
	}
	return g
}

// add has a stream's socket watched, until it is closed.
func (g *giveWay) add(raw syscall.RawConn) {
	g.streams.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = raw.Control(func(fd uintptr) {
		_ = unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET})
	})
}

func (g *giveWay) removed() { g.streams.Add(-1) }

// nothing is called by a poll that has found nothing.
func (g *giveWay) nothing() {
	if g.streams.Load() == 0 || g.empty.Add(1)%giveWayPolls != 0 || runtime.GOMAXPROCS(0) > 1 || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	var ready [8]unix.EpollEvent
	if n, err := unix.EpollWait(g.epoll, ready[:], 0); n <= 0 || err != nil {
		return
	}
	select {
	case <-g.passed: // of before
	default:
	}
	g.waiting.Store(true)
	g.timer.Reset(giveWayTime)
	select {
	case <-g.passed:
	case <-g.timer.C:
	}
	g.waiting.Store(false)
}

// pass is called by a stream's goroutine that has done its work.
func (g *giveWay) pass() {
	if g.waiting.Load() {
		select {
		case g.passed <- struct{}{}:
		default:
		}
	}
}

func (g *giveWay) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoll >= 0 {
		_ = unix.Close(g.epoll)
		g.epoll = -1
	}
}
