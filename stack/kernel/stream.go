package kernel

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/stack"
)

const (
	// sendBuffer is the largest number of bytes that a stream queues: as many as accumulate while the
	// previous batch is written. The kernel also has a send buffer.
	sendBuffer = 256 << 10

	// pieceBuffer is the size of the pooled buffers for reading and for filling pieces.
	pieceBuffer = 64 << 10

	// lingerTime limits the time for a closed stream to pass queued data to the kernel, and for the
	// kernel to deliver it.
	lingerTime = 5 * time.Second

	// The timeouts are the same as in package netstack, and suit a data centre.
	userTimeout       = 10 * time.Second
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = time.Second
	keepAliveProbes   = 5
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveProbes}

var (
	buffers      = sync.Pool{New: func() any { return new([pieceBuffer]byte) }}
	queueBuffers = sync.Pool{New: func() any { return new([sendBuffer]byte) }}
)

// stream is a connection of the kernel's TCP.
//
// A piece is filled into a buffer and written on the sender's goroutine. Data that the kernel does
// not take is queued and written by a goroutine, drain, which runs only then. An idle stream has
// neither buffers nor goroutines.
type stream struct {
	*net.TCPConn
	host *Host
	raw  syscall.RawConn
	mss  int

	mu      sync.Mutex // guards the fields up to sendErr
	queued  []byte     // data to write after drain's present batch
	spare   []byte     // the second of drain's two buffers
	pieces  int        // pieces in queued, or with drain
	writing bool       // drain or Write has the turn to write
	turn    sync.Cond  // signalled when writing ends
	full    bool       // Send has found no room since onRoom was last called
	finish  bool       // FIN follows the queued data
	closed  bool       // Close or Abort was called
	err     error      // of writing; permanent
	onRoom  func()
	out     []byte // argument of tryOut
	sent    int    // bytes of out that were written
	sendErr error

	// Fields of the reader, one goroutine at a time.
	buffer  *[pieceBuffer]byte // holds have; nil if have is empty
	have    []byte             // data that Wait has read
	end     error              // error after have
	readErr error              // result of tryIn
	got     int
	tryOut  func(fd uintptr) // made once, because a closure allocates
	tryIn   func(fd uintptr)
	waitIn  func(fd uintptr) bool
}

var _ stack.Stream = (*stream)(nil)

// newStream makes a connection a stream of the host. It fails if the host is closed.
func (h *Host) newStream(c *net.TCPConn) (*stream, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &stream{TCPConn: c, host: h, raw: raw}
	s.turn.L = &s.mu
	s.tryOut = func(fd uintptr) { s.sent, s.sendErr = writeNow(fd, s.out) }
	s.tryIn = func(fd uintptr) { s.got, s.readErr = readNow(fd, s.buffer[:]) }
	s.waitIn = func(fd uintptr) bool {
		if s.buffer == nil {
			s.buffer = buffers.Get().(*[pieceBuffer]byte)
		}
		if s.tryIn(fd); s.readErr == errWouldBlock {
			s.release() // an idle stream has no buffer
			return false
		}
		return true
	}
	_ = c.SetNoDelay(true)
	_ = c.SetKeepAliveConfig(keepAlive)
	s.control(func(fd uintptr) {
		s.mss = segmentSize(fd)
		setUserTimeout(fd, userTimeout)
	})
	if s.mss <= 0 {
		s.mss = 1220 // that of IPv6's minimum MTU
	}
	s.mss = min(s.mss, stack.MaxPiece)
	if !h.track(s) {
		_ = c.SetLinger(0)
		_ = c.Close()
		return nil, net.ErrClosed
	}
	h.nic.streams.Add(1)
	return s, nil
}

// control calls f with the socket, unless it is closed.
func (s *stream) control(f func(fd uintptr)) { _ = s.raw.Control(f) }

// MSS implements [stack.Stream].
func (s *stream) MSS() int { return s.mss }

// Offloaded implements [stack.Stream]: the kernel or the network card cuts pieces.
func (s *stream) Offloaded() bool { return true }

// LocalNIC implements [stack.Stream]. It is not known whether the other end is in this process.
func (s *stream) LocalNIC() stack.NIC { return nil }

// Send implements [stack.Stream]. The kernel may cut and join pieces, which FPDUs tolerate (RFC
// 5044 §5).
func (s *stream) Send(n int, fill stack.PieceWriter) (bool, error) {
	if n <= 0 || n > stack.MaxPiece {
		return false, fmt.Errorf("kernel: piece of a stream has %d bytes: want 1 to %d", n, stack.MaxPiece)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sendable(); err != nil {
		return false, err
	}
	if s.writing {
		if len(s.queued)+n > sendBuffer {
			s.full = true
			return false, nil
		}
		at := len(s.queued)
		if at+n > cap(s.queued) {
			s.queued = queueBuffers.Get().(*[sendBuffer]byte)[:0] // it had no buffer
		}
		if !fill.WritePiece(s.queued[at : at+n]) {
			return false, stack.ErrNotFilled
		}
		s.queued = s.queued[:at+n]
		s.pieces++
		return true, nil
	}
	b := buffers.Get().(*[pieceBuffer]byte)
	defer buffers.Put(b)
	if !fill.WritePiece(b[:n]) {
		return false, stack.ErrNotFilled
	}
	s.out, s.sent, s.sendErr = b[:n], 0, nil
	if err := s.raw.Control(s.tryOut); err != nil {
		s.sendErr = err
	}
	rest := s.out[s.sent:]
	s.out = nil
	switch {
	case s.sendErr != nil && s.sendErr != errWouldBlock:
		s.err = s.sendErr
		return false, s.err
	case len(rest) > 0:
		s.queued = append(queueBuffers.Get().(*[sendBuffer]byte)[:0], rest...)
		s.pieces++
		s.writing = true
		go s.drain()
	}
	return true, nil
}

// sendable returns the reason why nothing can be sent, or nil. mu is held.
func (s *stream) sendable() error {
	switch {
	case s.closed:
		return net.ErrClosed
	case s.err != nil:
		return s.err
	case s.finish:
		return syscall.EPIPE
	}
	return nil
}

// drain writes queued data until there is none, and then performs the actions that wait for that.
func (s *stream) drain() {
	s.mu.Lock()
	for len(s.queued) > 0 && s.err == nil {
		b, pieces := s.queued, s.pieces
		s.queued = s.spare[:0]
		s.mu.Unlock()
		_, err := s.TCPConn.Write(b)
		s.mu.Lock()
		s.spare = b
		s.pieces -= pieces
		if err != nil {
			s.err = err
		}
		s.callOnRoom()
	}
	for _, b := range [][]byte{s.queued, s.spare} {
		if cap(b) > 0 {
			queueBuffers.Put((*[sendBuffer]byte)(b[:sendBuffer]))
		}
	}
	s.queued, s.spare, s.pieces = nil, nil, 0
	s.endTurn()
	s.callOnRoom()
	s.mu.Unlock()
}

// endTurn ends the turn to write. It sends FIN or closes the socket, if that is due. mu is held.
func (s *stream) endTurn() {
	s.writing = false
	s.turn.Broadcast()
	switch {
	case s.closed:
		_ = s.TCPConn.Close()
	case s.finish && s.err == nil:
		s.err = s.TCPConn.CloseWrite()
	}
}

// callOnRoom calls OnRoom's function if Send has found no room. mu is held, and released during the
// call.
func (s *stream) callOnRoom() {
	if f := s.onRoom; s.full && f != nil && !s.closed {
		s.full = false
		s.mu.Unlock()
		f()
		s.mu.Lock()
	}
}

// OnRoom implements [stack.Stream].
func (s *stream) OnRoom(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onRoom = f
}

// Unanswered implements [stack.Stream]. The kernel does not report acknowledgements, so it returns
// the number of pieces that the kernel has not taken. The kernel coalesces small segments when many
// are in flight, and accounts for their memory.
func (s *stream) Unanswered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pieces
}

// CallOnAnswer implements [stack.Stream].
func (s *stream) CallOnAnswer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = true
	if !s.writing {
		s.writing = true
		go s.drain() // drain writes nothing, and calls OnRoom's function
	}
}

// Write implements [net.Conn]. It writes after Send's data. If the write deadline passes, no more
// data can be sent.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writing {
		s.turn.Wait()
	}
	if err := s.sendable(); err != nil {
		return 0, err
	}
	s.writing = true
	s.mu.Unlock()
	n, err := s.TCPConn.Write(b)
	s.mu.Lock()
	if err != nil {
		s.err = err
	}
	if len(s.queued) > 0 || s.full {
		go s.drain()
		return n, err
	}
	s.endTurn()
	return n, err
}

// ReadFrom hides net.TCPConn's ReadFrom, which would overtake queued data.
func (s *stream) ReadFrom(r io.Reader) (int64, error) { return io.Copy(onlyWriter{s}, r) }

// WriteTo hides net.TCPConn's WriteTo, which would skip data that Wait has read.
func (s *stream) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, onlyReader{s}) }

type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// CloseWrite implements [stack.Stream].
func (s *stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sendable(); err != nil {
		return err
	}
	s.finish = true
	if !s.writing {
		s.err = s.TCPConn.CloseWrite()
		return s.err
	}
	return nil
}

// Close implements [net.Conn]. Sent data is still delivered, if the peer takes it within
// lingerTime.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.untrack()
	// For data that the kernel has not delivered.
	s.control(func(fd uintptr) { setUserTimeout(fd, lingerTime) })
	if !s.writing {
		return s.TCPConn.Close()
	}
	_ = s.SetReadDeadline(time.Unix(1, 0)) // ends Wait
	return s.SetWriteDeadline(time.Now().Add(lingerTime))
}

// Abort implements [stack.Stream].
func (s *stream) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.untrack()
	}
	_ = s.SetLinger(0)
	_ = s.TCPConn.Close()
}

// untrack is called once when the stream is closed.
func (s *stream) untrack() {
	s.host.untrack(s)
	s.host.nic.streams.Add(-1)
}

// isClosed reports whether this end was closed.
func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// SetTOS implements [stack.Stream].
func (s *stream) SetTOS(tos uint8) { s.control(func(fd uintptr) { setTOS(fd, int(tos&^3)) }) }

// SetReadBuffer implements [stack.Stream]. The kernel's limit includes its overhead.
func (s *stream) SetReadBuffer(n int) { s.control(func(fd uintptr) { setReceiveBuffer(fd, n) }) }

// Wait implements [stack.Stream]. It reads data into a buffer that is held until the data is
// received.
func (s *stream) Wait() error {
	if len(s.have) > 0 || s.end != nil {
		return nil
	}
	err := s.fill()
	switch {
	case err == nil:
	case s.isClosed():
		return net.ErrClosed
	case os.IsTimeout(err):
		return err
	default:
		s.end = err
	}
	return nil
}

// Receive implements [stack.Stream].
func (s *stream) Receive(take stack.Consumer) error {
	for {
		if len(s.have) == 0 {
			if s.end == nil {
				s.readMore()
			}
			if len(s.have) == 0 {
				s.release()
				return s.end
			}
		}
		b := s.have
		s.have = nil
		if !take.Consume(b) {
			s.release()
			return nil
		}
	}
}

// readMore reads available data into have, without waiting.
func (s *stream) readMore() {
	if s.buffer == nil {
		s.buffer = buffers.Get().(*[pieceBuffer]byte)
	}
	s.got, s.readErr = 0, nil
	if err := s.raw.Control(s.tryIn); err != nil {
		s.readErr = net.ErrClosed
	}
	if s.readErr != errWouldBlock {
		s.readDone()
	}
}

// readDone processes the result of tryIn.
func (s *stream) readDone() {
	switch {
	case s.readErr != nil:
		s.end = s.readErr
	case s.got == 0:
		s.end = io.EOF
	default:
		s.have = s.buffer[:s.got]
	}
}

// release releases the buffer, unless it has data.
func (s *stream) release() {
	if s.buffer != nil && len(s.have) == 0 {
		buffers.Put(s.buffer)
		s.buffer = nil
	}
}

// Read implements [net.Conn].
func (s *stream) Read(b []byte) (int, error) {
	switch {
	case len(s.have) > 0:
		n := copy(b, s.have)
		s.have = s.have[n:]
		s.release()
		return n, nil
	case s.end != nil:
		return 0, s.end
	}
	return s.TCPConn.Read(b)
}
