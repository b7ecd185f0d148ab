package netstack

// On the path: what gVisor's TCP has received, and the reader's waiting for it.

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/stack"
)

// dataReady is notified when there may be something to read.
type dataReady chan struct{}

// NotifyEvent implements waiter.EventListener.
func (r dataReady) NotifyEvent(waiter.EventMask) {
	select {
	case r <- struct{}{}:
	default:
	}
}

const readable = waiter.ReadableEvents | waiter.EventErr | waiter.EventHUp

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
		case <-s.dataReady:
		case <-s.deadline.passed:
		case <-s.closed:
			return net.ErrClosed
		}
	}
}

// Receive implements Stream.
func (s *stream) Receive(take stack.Taker) error {
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
type intake struct{ take stack.Taker }

var errEnough = errors.New("netstack: the taker has enough")

func (in *intake) Write(b []byte) (int, error) {
	if !in.take.Take(b) {
		return len(b), errEnough
	}
	return len(b), nil
}

// deadline is the read deadline, for Wait.
type deadline struct {
	passed chan struct{}

	mu    sync.Mutex
	at    time.Time
	timer *time.Timer
}

func (d *deadline) past() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.at.IsZero() && !time.Now().Before(d.at)
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
	if d.timer != nil {
		d.timer.Stop()
	}
	if t.IsZero() {
		return
	}
	d.timer = time.AfterFunc(time.Until(t), func() {
		select {
		case d.passed <- struct{}{}:
		default:
		}
	})
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.deadline.set(t)
	return s.TCPConn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	s.deadline.set(t)
	return s.TCPConn.SetDeadline(t)
}
