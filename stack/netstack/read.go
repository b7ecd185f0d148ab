package netstack

// Receiving from gVisor's TCP, and waiting for data. Every received segment takes this path.

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

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

const readable = waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp

// readWaiter notifies the waiting reader that there may be data, or that the deadline has passed.
type readWaiter struct {
	stream *stream
	ready  chan struct{}

	waiting atomic.Bool
	onWake  func() // valid if waiting
}

// NotifyEvent implements waiter.EventListener. gVisor's locks are held.
func (a *readWaiter) NotifyEvent(waiter.EventMask) { a.notify() }

// notify ends Wait, or calls NotifyReadable's function.
func (a *readWaiter) notify() {
	select {
	case a.ready <- struct{}{}:
	default:
	}
	a.wake()
}

// wake calls NotifyReadable's function, if there is one.
func (a *readWaiter) wake() {
	if a.waiting.Load() && a.waiting.Swap(false) {
		go a.stream.callReadable()
	}
}

// Wait implements Stream.
func (s *stream) Wait() error {
	for {
		if s.deadline.past(s.host.clock) {
			return os.ErrDeadlineExceeded
		}
		if s.ep.Readiness(readable)&readable != 0 {
			return nil
		}
		select {
		case <-s.readWaiter.ready:
		case <-s.closed:
			return net.ErrClosed
		}
	}
}

// NotifyReadable implements stack.ReadNotifier.
func (s *stream) NotifyReadable(f func()) {
	s.readWaiter.onWake = f
	s.readWaiter.waiting.Store(true)
	// Data or an end that arrived earlier was not notified.
	if s.isReady() {
		s.readWaiter.wake()
	}
}

// callReadable calls NotifyReadable's function. It waits again if Wait would not return: a deadline
// may be removed while its timer notifies.
func (s *stream) callReadable() {
	if s.isReady() {
		s.readWaiter.onWake()
	} else {
		s.NotifyReadable(s.readWaiter.onWake)
	}
}

// isReady reports whether Wait returns at once.
func (s *stream) isReady() bool {
	return s.deadline.past(s.host.clock) || s.ep.Readiness(readable)&readable != 0 || s.isClosed()
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
	s.consumerWriter.consumer = take
	got, terr := s.ep.Read(&s.consumerWriter, tcpip.ReadOptions{})
	s.consumerWriter.consumer = nil
	s.buffers.consumed(got.Total)
	switch terr.(type) {
	case nil, *tcpip.ErrWouldBlock:
		return nil
	case *tcpip.ErrClosedForReceive:
		return io.EOF
	}
	return streamError(terr)
}

// consumerWriter passes gVisor's receive buffer to a Consumer.
type consumerWriter struct{ consumer stack.Consumer }

var errEnough = errors.New("netstack: the consumer has enough")

func (in *consumerWriter) Write(b []byte) (int, error) {
	if !in.consumer.Consume(b) {
		return len(b), errEnough
	}
	return len(b), nil
}

// deadline is the read deadline, for Wait, or the write deadline.
type deadline struct {
	mu    sync.Mutex
	at    time.Time
	timer clock.Timer
}

func (d *deadline) past(c clock.Clock) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.at.IsZero() && !c.Now().Before(d.at)
}

// set arranges a call of passed at t, or none if t is zero.
func (d *deadline) set(c clock.Clock, t time.Time, passed func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if !t.IsZero() {
		d.timer = c.AfterFunc(c.Until(t), passed)
	}
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	if !s.host.clock.Virtual() {
		s.deadline.set(s.host.clock, t, s.readWaiter.notify)
		return s.TCPConn.SetReadDeadline(t)
	}
	s.deadline.set(s.host.clock, t, func() {
		_ = s.TCPConn.SetReadDeadline(passed)
		s.readWaiter.notify()
	})
	return s.TCPConn.SetReadDeadline(time.Time{})
}

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error {
	if !s.host.clock.Virtual() {
		return s.TCPConn.SetWriteDeadline(t)
	}
	s.writeDeadline.set(s.host.clock, t, func() { _ = s.TCPConn.SetWriteDeadline(passed) })
	return s.TCPConn.SetWriteDeadline(time.Time{})
}

// passed is a deadline that ends what waits. gonet measures deadlines by the machine's clock.
var passed = time.Unix(1, 0)

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}
