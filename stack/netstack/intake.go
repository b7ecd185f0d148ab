package netstack

// On the path: what gVisor's TCP has received, and the reader's waiting for it.

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/stack"
)

const readable = waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp

// arrivals tells who waits for the stream that there may be something to read, or that its deadline has passed.
type arrivals struct {
	ready chan struct{}

	parked atomic.Bool
	onWake func() // if parked
}

// NotifyEvent implements waiter.EventListener. gVisor's locks are held.
func (a *arrivals) NotifyEvent(waiter.EventMask) { a.tell() }

// tell ends a Wait, or a Park.
func (a *arrivals) tell() {
	select {
	case a.ready <- struct{}{}:
	default:
	}
	a.wake()
}

// wake calls the function of Park, if there is one.
func (a *arrivals) wake() {
	if a.parked.Load() && a.parked.Swap(false) {
		go a.onWake()
	}
}

// Wait implements Stream.
func (s *stream) Wait() error {
	for {
		if s.deadline.past() {
			return os.ErrDeadlineExceeded
		}
		if s.ep.Readiness(readable)&readable != 0 {
			return nil
		}
		select {
		case <-s.arrivals.ready:
		case <-s.closed:
			return net.ErrClosed
		}
	}
}

// Park implements stack.Parker.
func (s *stream) NotifyReadable(f func()) {
	s.arrivals.onWake = f
	s.arrivals.parked.Store(true)
	// What has come, or ended, before that has found nobody to tell.
	if s.deadline.past() || s.ep.Readiness(readable)&readable != 0 || s.isClosed() {
		s.arrivals.wake()
	}
}

func (s *stream) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Receive implements Stream.
func (s *stream) Receive(take stack.Consumer) error {
	s.intake.take = take
	got, terr := s.ep.Read(&s.intake, tcpip.ReadOptions{})
	s.intake.take = nil
	s.buffers.took(got.Total)
	switch terr.(type) {
	case nil, *tcpip.ErrWouldBlock:
		return nil
	case *tcpip.ErrClosedForReceive:
		return io.EOF
	}
	return streamError(terr)
}

// intake is what gVisor's receive buffer is read into.
type intake struct{ take stack.Consumer }

var errEnough = errors.New("netstack: the taker has enough")

func (in *intake) Write(b []byte) (int, error) {
	if !in.take.Consume(b) {
		return len(b), errEnough
	}
	return len(b), nil
}

// deadline is the read deadline, for Wait.
type deadline struct {
	mu    sync.Mutex
	at    time.Time
	timer *time.Timer
}

func (d *deadline) past() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

// set has passed called at t, or never if that is zero.
func (d *deadline) set(t time.Time, passed func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), passed)
	}
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.deadline.set(t, s.arrivals.tell)
	return s.TCPConn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	s.deadline.set(t, s.arrivals.tell)
	return s.TCPConn.SetDeadline(t)
}
