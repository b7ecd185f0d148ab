package kernel

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/internal/idle"
)

// yielder lets the goroutines of streams run while an application polls with GOMAXPROCS 1. Go's
// scheduler checks the network poller only when no goroutine is runnable, or after 10 ms. A polling
// goroutine is always runnable. Therefore the poller checks an epoll instance. If a socket is
// ready, the poller waits until the socket's goroutine has run.
type yielder struct {
	streams atomic.Int32
	empty   atomic.Uint32 // polls that found nothing
	waiting atomic.Bool
	ran     chan struct{}

	mu    sync.Mutex // guards the fields below; held by the waiting poller
	epoll int        // has the streams' sockets; -1: none
	timer *time.Timer
}

func newYielder() *yielder {
	g := &yielder{ran: make(chan struct{}, 1), timer: time.NewTimer(0)}
	var err error
	if g.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		g.epoll = -1
	}
	return g
}

// add adds a stream's socket to the epoll instance; closing the socket removes it.
func (g *yielder) add(raw syscall.RawConn) {
	g.streams.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = raw.Control(func(fd uintptr) {
		events := uint32(unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET)
		_ = unix.EpollCtl(g.epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: events})
	})
}

func (g *yielder) removed() { g.streams.Add(-1) }

// emptyPoll is called by a poll that has found nothing.
func (g *yielder) emptyPoll() {
	if g.streams.Load() == 0 || g.empty.Add(1)%idle.PollsPerStreamCheck != 0 || runtime.GOMAXPROCS(0) > 1 || !g.mu.TryLock() {
		return
	}
	defer g.mu.Unlock()
	var ready [8]unix.EpollEvent
	if n, err := unix.EpollWait(g.epoll, ready[:], 0); n <= 0 || err != nil {
		return
	}
	select {
	case <-g.ran: // from an earlier wait
	default:
	}
	g.waiting.Store(true)
	g.timer.Reset(idle.StreamWait)
	select {
	case <-g.ran:
	case <-g.timer.C:
	}
	g.waiting.Store(false)
}

// streamRan is called by a stream's goroutine after its work.
func (g *yielder) streamRan() {
	if g.waiting.Load() {
		select {
		case g.ran <- struct{}{}:
		default:
		}
	}
}

func (g *yielder) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoll >= 0 {
		_ = unix.Close(g.epoll)
		g.epoll = -1
	}
}
