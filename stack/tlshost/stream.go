package tlshost

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// maxRecord is the largest payload of a record in bytes (RFC 8446 §5.1).
const maxRecord = 16 << 10

var (
	pieces = sync.Pool{New: func() any { return new([stack.MaxPiece]byte) }}
	plain  = sync.Pool{New: func() any { return new([maxRecord]byte) }}
)

// stream is a TLS connection. An idle stream has no goroutine and no buffer of its own; crypto/tls
// keeps one for about two records.
type stream struct {
	host *Host
	wire *wire
	tls  *tls.Conn

	sendMu sync.Mutex // one piece at a time

	mu       sync.Mutex
	finished bool
	closed   bool
	onRoom   func()
	room     chan struct{} // closed when Write may continue; nil if no Write waits
	deadline time.Time     // of Write

	readDeadline atomic.Pointer[time.Time] // nil: none

	// Fields of the reader, one goroutine at a time.
	buffer *[maxRecord]byte // holds have; nil if have is empty
	have   []byte
	end    error // after have
}

var (
	_ stack.Stream        = (*stream)(nil)
	_ stack.Authenticated = (*stream)(nil)
	_ stack.ReadNotifier  = (*notifyingStream)(nil)
)

func newStream(h *Host, w *wire, c *tls.Conn) *stream {
	s := &stream{host: h, wire: w, tls: c}
	w.mu.Lock()
	w.onRoom = s.hasRoom
	w.mu.Unlock()
	return s
}

// PeerIdentity implements [stack.Authenticated].
func (s *stream) PeerIdentity() (stack.Identity, bool) {
	state := s.tls.ConnectionState()
	cert := verified(&state)
	if cert == nil {
		return stack.Identity{}, false
	}
	id := stack.Identity{PublicKey: KeyHash(cert)}
	if len(cert.DNSNames) > 0 {
		id.Name = cert.DNSNames[0]
	}
	return id, true
}

// MSS implements [stack.Stream]. A record of such a payload fits a segment.
func (s *stream) MSS() int { return max(s.wire.inner.MSS()-recordOverhead, 1) }

// Offloaded implements [stack.Stream].
func (s *stream) Offloaded() bool { return s.wire.inner.Offloaded() }

// LocalNIC implements [stack.Stream]. Data always goes through TLS, so it returns nil.
func (s *stream) LocalNIC() stack.NIC { return nil }

// Send implements [stack.Stream]. The piece is encrypted on the caller's goroutine.
func (s *stream) Send(n int, fill stack.PieceWriter) (bool, error) {
	if n <= 0 || n > stack.MaxPiece {
		return false, fmt.Errorf("tlshost: piece of a stream has %d bytes: want 1 to %d", n, stack.MaxPiece)
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if err := s.sendable(); err != nil {
		return false, err
	}
	if s.wire.hasQueue() {
		return false, nil // the queue's end calls OnRoom's function
	}
	b := pieces.Get().(*[stack.MaxPiece]byte)
	defer pieces.Put(b)
	if !fill.WritePiece(b[:n]) {
		return false, stack.ErrNotFilled
	}
	if _, err := s.tls.Write(b[:n]); err != nil {
		return false, err
	}
	return true, nil
}

// sendable returns the reason why nothing can be sent, or nil.
func (s *stream) sendable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return net.ErrClosed
	case s.finished:
		return syscall.EPIPE
	}
	return nil
}

// hasRoom is called when the queue of records is empty again.
func (s *stream) hasRoom() {
	s.mu.Lock()
	f := s.onRoom
	if s.closed {
		f = nil
	}
	s.wake()
	s.mu.Unlock()
	if f != nil {
		f()
	}
}

// wake lets a waiting Write continue. mu is held.
func (s *stream) wake() {
	if s.room != nil {
		close(s.room)
		s.room = nil
	}
}

// OnRoom implements [stack.Stream].
func (s *stream) OnRoom(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRoom = f
}

// Unanswered implements [stack.Stream].
func (s *stream) Unanswered() int { return s.wire.inner.Unanswered() }

// CallOnAnswer implements [stack.Stream].
func (s *stream) CallOnAnswer() { s.wire.inner.CallOnAnswer() }

// Write implements [net.Conn]. It waits for room.
func (s *stream) Write(b []byte) (n int, err error) {
	for n < len(b) {
		s.mu.Lock()
		if s.room == nil {
			s.room = make(chan struct{})
		}
		room, deadline := s.room, s.deadline
		s.mu.Unlock()
		if !deadline.IsZero() && !s.host.clock.Now().Before(deadline) {
			return n, os.ErrDeadlineExceeded
		}
		part := b[n:min(n+maxRecord, len(b))]
		ok, err := s.Send(len(part), copyOf(part))
		if err != nil {
			return n, err
		}
		if ok {
			n += len(part)
			continue
		}
		s.awaitRoom(room, deadline)
	}
	return n, nil
}

// awaitRoom waits until room is closed, or for the deadline.
func (s *stream) awaitRoom(room chan struct{}, deadline time.Time) {
	if deadline.IsZero() {
		<-room
		return
	}
	late, t := s.host.clock.NewTimer(s.host.clock.Until(deadline))
	defer t.Stop()
	select {
	case <-room:
	case <-late:
	}
}

// copyOf is a piece that exists already.
type copyOf []byte

// WritePiece implements [stack.PieceWriter].
func (c copyOf) WritePiece(b []byte) bool { return copy(b, c) == len(b) }

// CloseWrite implements [stack.Stream]. It sends close_notify and FIN.
func (s *stream) CloseWrite() error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if err := s.sendable(); err != nil {
		return err
	}
	s.mu.Lock()
	s.finished = true
	s.mu.Unlock()
	if err := s.tls.CloseWrite(); err != nil {
		return err
	}
	return s.wire.closeWrite()
}

// setClosed reports whether the stream was open.
func (s *stream) setClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.closed = true
	s.wake()
	return true
}

// Close implements [net.Conn]. Sent data is still delivered, if the peer takes it soon.
func (s *stream) Close() error {
	if !s.setClosed() {
		return nil
	}
	s.host.untrack(s)
	s.sendMu.Lock()
	_ = s.tls.CloseWrite() // close_notify, unless it was sent
	s.sendMu.Unlock()
	s.wire.closeAfterQueue()
	return nil
}

// Abort implements [stack.Stream].
func (s *stream) Abort() {
	if s.setClosed() {
		s.host.untrack(s)
	}
	s.wire.inner.Abort()
}

func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// SetTOS implements [stack.Stream].
func (s *stream) SetTOS(tos uint8) { s.wire.inner.SetTOS(tos) }

// SetReadBuffer implements [stack.Stream].
func (s *stream) SetReadBuffer(n int) { s.wire.inner.SetReadBuffer(n) }

// LocalAddr implements [net.Conn].
func (s *stream) LocalAddr() net.Addr { return s.wire.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (s *stream) RemoteAddr() net.Addr { return s.wire.RemoteAddr() }

// SetDeadline implements [net.Conn].
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (s *stream) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		s.readDeadline.Store(nil)
	} else {
		s.readDeadline.Store(&t)
	}
	return s.wire.inner.SetReadDeadline(t)
}

// SetWriteDeadline implements [net.Conn].
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.wake() // a waiting Write reads it again
	return nil
}

// late reports whether the read deadline has passed. A peer that keeps sending does not delay it.
func (s *stream) late() bool {
	at := s.readDeadline.Load()
	return at != nil && !s.host.clock.Now().Before(*at)
}

// fill decrypts received data into have, or stores the end of the stream in end. It returns false
// if there is neither now.
func (s *stream) fill() bool {
	if len(s.have) > 0 || s.end != nil {
		return true
	}
	if s.buffer == nil {
		s.buffer = plain.Get().(*[maxRecord]byte)
	}
	n, err := s.tls.Read(s.buffer[:])
	s.have = s.buffer[:n]
	if err != nil && err != errNoData {
		s.setEnd(err)
	}
	s.release()
	return n > 0 || s.end != nil
}

// setEnd stores the end of the stream.
func (s *stream) setEnd(err error) {
	s.end = err
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" {
		s.host.cfg.Logger.Warn("the peer has ended a TLS connection", "peer", s.RemoteAddr(), "error", err)
	} else if !errors.Is(err, io.EOF) {
		s.host.cfg.Logger.Debug("a TLS connection is lost", "peer", s.RemoteAddr(), "error", err)
	}
}

// release releases the buffer, unless it has data.
func (s *stream) release() {
	if s.buffer != nil && len(s.have) == 0 {
		plain.Put(s.buffer)
		s.buffer, s.have = nil, nil
	}
}

// Wait implements [stack.Stream].
func (s *stream) Wait() error {
	for {
		switch {
		case s.isClosed():
			return net.ErrClosed
		case s.late():
			return os.ErrDeadlineExceeded
		case s.fill():
			return nil
		}
		if err := s.wire.inner.Wait(); err != nil {
			if s.isClosed() {
				return net.ErrClosed
			}
			return err
		}
	}
}

// Receive implements [stack.Stream].
func (s *stream) Receive(take stack.Consumer) error {
	for s.fill() {
		if len(s.have) == 0 {
			return s.end
		}
		more := take.Consume(s.have)
		s.have = nil
		s.release()
		if !more {
			return nil
		}
	}
	return nil
}

// Read implements [net.Conn].
func (s *stream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if err := s.Wait(); err != nil {
		return 0, err
	}
	if len(s.have) == 0 {
		return 0, s.end
	}
	n := copy(b, s.have)
	s.have = s.have[n:]
	s.release()
	return n, nil
}

// notifyingStream is a stream on a TCP connection that can be waited for without a goroutine.
type notifyingStream struct{ *stream }

// NotifyReadable implements [stack.ReadNotifier].
func (s *notifyingStream) NotifyReadable(f func()) {
	notifier := s.wire.inner.(stack.ReadNotifier)
	if s.isClosed() || s.late() || s.fill() {
		go f()
		return
	}
	var again func()
	again = func() {
		if s.isClosed() || s.late() || s.fill() {
			f()
			return
		}
		notifier.NotifyReadable(again)
	}
	notifier.NotifyReadable(again)
}
