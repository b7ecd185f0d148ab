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
	// sendBuffer is how many bytes that the kernel does not take a stream keeps: as many as gather while what was kept before
	// is being written. The kernel has a send buffer of its own.
	sendBuffer = 256 << 10

	// pieceBuffer is the size of the pooled buffers that streams are read into, and filled in.
	pieceBuffer = 64 << 10

	// lingerTime is how long a stream that is closed has to hand what it keeps to the kernel, and the kernel to deliver it.
	lingerTime = 5 * time.Second

	// Timeouts as package netstack has them: those of a data centre.
	userTimeout       = 10 * time.Second
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = time.Second
	keepAliveProbes   = 5
)

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveProbes}

var (
	buffers     = sync.Pool{New: func() any { return new([pieceBuffer]byte) }}
	keptBuffers = sync.Pool{New: func() any { return new([sendBuffer]byte) }}
)

// stream is a connection of the kernel's TCP.
//
// A piece is filled into a buffer of the stream, and from there written on the goroutine that sends it. What the kernel does
// not take is kept and written by a goroutine, drain, which runs only then. An idle stream has neither buffers nor goroutines.
type stream struct {
	*net.TCPConn
	host *Host
	raw  syscall.RawConn
	mss  int

	mu      sync.Mutex // of what follows
	kept    []byte     // what is to be written, behind what drain is writing
	spare   []byte     // the other of drain's two buffers
	pieces  int        // of Send, in kept or with drain
	writing bool       // drain, or a Write, has the turn to write
	turn    sync.Cond  // to write; signalled when writing ends
	full    bool       // Send has found no room since onRoom was called
	finish  bool       // FIN goes behind what is kept
	closed  bool       // Close or Abort was called
	err     error      // of writing, for good
	onRoom  func()
	out     []byte // what tryOut writes
	sent    int    // of it
	sendErr error

	// Of the reader, one goroutine at a time.
	buffer  *[pieceBuffer]byte // holds have; nil if that is empty
	have    []byte             // came with Wait
	end     error              // after that
	readErr error              // of tryIn
	got     int
	tryOut  func(fd uintptr) // set once, so that calling the kernel allocates nothing
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
		if s.tryIn(fd); s.readErr == errNothing {
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
		s.mss = 1220 // of the smallest MTU that IPv6 allows
	}
	s.mss = min(s.mss, stack.MaxPiece)
	if !h.keep(s) {
		_ = c.SetLinger(0)
		_ = c.Close()
		return nil, net.ErrClosed
	}
	h.nic.giveWay.add(raw)
	return s, nil
}

// control calls f with the socket, unless that is closed.
func (s *stream) control(f func(fd uintptr)) { _ = s.raw.Control(f) }

// MSS implements [stack.Stream].
func (s *stream) MSS() int { return s.mss }

// Offloaded implements [stack.Stream]: the kernel cuts what it is given, or has the network card do so.
func (s *stream) Offloaded() bool { return true }

// Near implements [stack.Stream]. Whether the other end is in this process is not known.
func (s *stream) Near() stack.NIC { return nil }

// Send implements [stack.Stream]. The kernel may cut a piece and join two, as its TCP sees fit; FPDUs survive that
// (RFC 5044 §5).
func (s *stream) Send(n int, fill stack.Filler) (bool, error) {
	if n <= 0 || n > stack.MaxPiece {
		return false, fmt.Errorf("kernel: a piece of a stream of %d bytes: it has 1 to %d", n, stack.MaxPiece)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sendable(); err != nil {
		return false, err
	}
	if s.writing {
		if len(s.kept)+n > sendBuffer {
			s.full = true
			return false, nil
		}
		at := len(s.kept)
		if at+n > cap(s.kept) {
			s.kept = keptBuffers.Get().(*[sendBuffer]byte)[:0] // it had none
		}
		if !fill.Fill(s.kept[at : at+n]) {
			return false, stack.ErrNotFilled
		}
		s.kept = s.kept[:at+n]
		s.pieces++
		return true, nil
	}
	b := buffers.Get().(*[pieceBuffer]byte)
	defer buffers.Put(b)
	if !fill.Fill(b[:n]) {
		return false, stack.ErrNotFilled
	}
	s.out, s.sent, s.sendErr = b[:n], 0, nil
	if err := s.raw.Control(s.tryOut); err != nil {
		s.sendErr = err
	}
	rest := s.out[s.sent:]
	s.out = nil
	switch {
	case s.sendErr != nil && s.sendErr != errNothing:
		s.err = s.sendErr
		return false, s.err
	case len(rest) > 0:
		s.kept = append(keptBuffers.Get().(*[sendBuffer]byte)[:0], rest...)
		s.pieces++
		s.writing = true
		go s.drain()
	}
	return true, nil
}

// sendable is why nothing can be sent, or nil. mu is held.
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

// drain writes what is kept until there is nothing left, and then does what waits for that.
func (s *stream) drain() {
	s.mu.Lock()
	for len(s.kept) > 0 && s.err == nil {
		b, pieces := s.kept, s.pieces
		s.kept = s.spare[:0]
		s.mu.Unlock()
		_, err := s.TCPConn.Write(b)
		s.host.nic.giveWay.pass()
		s.mu.Lock()
		s.spare = b
		s.pieces -= pieces
		if err != nil {
			s.err = err
		}
		s.callOnRoom()
	}
	for _, b := range [][]byte{s.kept, s.spare} {
		if cap(b) > 0 {
			keptBuffers.Put((*[sendBuffer]byte)(b[:sendBuffer]))
		}
	}
	s.kept, s.spare, s.pieces = nil, nil, 0
	s.endTurn()
	s.callOnRoom()
	s.mu.Unlock()
}

// endTurn gives up the turn to write: to FIN, or the end of the socket, if that is due. mu is held.
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

// callOnRoom calls the function given to OnRoom if Send has found no room. mu is held, and given up meanwhile.
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

// Unanswered implements [stack.Stream] by the pieces that the kernel has not taken. The kernel does not tell what was
// acknowledged; it gathers small segments by itself when many are under way, and accounts for the memory of each.
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
		go s.drain() // it has nothing to write, and calls
	}
}

// Write implements [net.Conn], behind what Send has taken. If the write deadline passes, nothing more can be sent.
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
	if len(s.kept) > 0 || s.full {
		go s.drain()
		return n, err
	}
	s.endTurn()
	return n, err
}

// ReadFrom hides that of net.TCPConn, which would pass what is kept.
func (s *stream) ReadFrom(r io.Reader) (int64, error) { return io.Copy(onlyWriter{s}, r) }

// WriteTo hides that of net.TCPConn, which would pass what Wait has read.
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

// Close implements [net.Conn]. What was sent still goes out, as far as the peer takes it in the linger time.
func (s *stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.forget()
	s.control(func(fd uintptr) { setUserTimeout(fd, lingerTime) }) // for what the kernel has not delivered
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
		s.forget()
	}
	_ = s.SetLinger(0)
	_ = s.TCPConn.Close()
}

// forget is called once, as the stream is closed.
func (s *stream) forget() {
	s.host.forget(s)
	s.host.nic.giveWay.removed()
}

// isClosed tells whether this end was closed.
func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// SetTOS implements [stack.Stream].
func (s *stream) SetTOS(tos uint8) { s.control(func(fd uintptr) { setTOS(fd, int(tos&^3)) }) }

// SetReadBuffer implements [stack.Stream]. The kernel counts its bookkeeping in the bound, too.
func (s *stream) SetReadBuffer(n int) { s.control(func(fd uintptr) { setReceiveBuffer(fd, n) }) }

// Wait implements [stack.Stream]. What has come is read when it comes, into a buffer that is held until it was received.
func (s *stream) Wait() error {
	if len(s.have) > 0 || s.end != nil {
		return nil
	}
	s.host.nic.giveWay.pass()
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
func (s *stream) Receive(take stack.Taker) error {
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
		if !take.Take(b) {
			s.release()
			return nil
		}
	}
}

// readMore reads what has come into have, without waiting.
func (s *stream) readMore() {
	if s.buffer == nil {
		s.buffer = buffers.Get().(*[pieceBuffer]byte)
	}
	s.got, s.readErr = 0, nil
	if err := s.raw.Control(s.tryIn); err != nil {
		s.readErr = net.ErrClosed
	}
	if s.readErr != errNothing {
		s.took()
	}
}

// took takes over what tryIn has read.
func (s *stream) took() {
	switch {
	case s.readErr != nil:
		s.end = s.readErr
	case s.got == 0:
		s.end = io.EOF
	default:
		s.have = s.buffer[:s.got]
	}
}

// release gives the buffer back, unless something is in it.
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
