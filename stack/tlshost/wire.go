package tlshost

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// maxQueue limits the records that wait for room in the send buffer, in bytes. Data stops at one
// piece. A peer that requests key updates and does not read the answers reaches the limit.
const maxQueue = 256 << 10

// maxReceived limits what a peer may send for a handshake, in bytes. Data that follows the
// handshake in one piece counts too. crypto/tls and this package keep up to three times as much.
const maxReceived = 128 << 10

// recordOverhead is the largest overhead of a TLS 1.3 record: header, content type and tag (RFC
// 8446 §5.2).
const recordOverhead = 5 + 1 + 16

// lingerTime limits the time for a closed stream to pass queued records to TCP.
const lingerTime = 5 * time.Second

// wire is the TCP connection below TLS. Writes never wait: what TCP's send buffer does not take is
// queued until it has room. After the handshake, reads do not wait either, but return errNoData.
// crypto/tls continues after such an error, as it does after a timeout.
type wire struct {
	inner   stack.Stream
	clock   clock.Clock
	waiting bool // reads wait, during the handshake
	came    int  // bytes received during the handshake

	mu     sync.Mutex
	queue  []byte // records, and how many of their bytes were sent
	sent   int
	err    error // of sending; permanent
	ended  bool  // closeWrite was called: nothing follows close_notify
	finish bool  // FIN follows the queue
	close  bool  // the connection is closed after the queue
	linger clock.Timer
	record []byte // argument of WritePiece
	onRoom func() // called without mu when the queue has become empty, and after errors

	// Fields of the reader.
	into []byte // argument of Consume: where data goes
	got  int
	rest []byte // received data that did not fit into the reader's buffer
	pool *[]byte
}

var (
	restBuffers  = sync.Pool{New: func() any { b := make([]byte, 0, 64<<10); return &b }}
	queueBuffers = sync.Pool{New: func() any { return new([maxQueue]byte) }}
)

// errNoData says that a read would have to wait.
var errNoData error = noData{}

type noData struct{}

func (noData) Error() string   { return "tlshost: no data now" }
func (noData) Timeout() bool   { return true }
func (noData) Temporary() bool { return true }

// errTruncated is the end of a connection whose peer did not announce it (RFC 8446 §6.1).
var errTruncated = fmt.Errorf("tlshost: the connection has ended without close_notify: %w", io.ErrUnexpectedEOF)

var (
	errQueueFull = errors.New("tlshost: the peer causes records and does not read them")
	errTooLong   = fmt.Errorf("tlshost: the peer sends more than %d bytes for a handshake", maxReceived)
)

func newWire(inner stack.Stream, c clock.Clock) *wire {
	w := &wire{inner: inner, clock: c, waiting: true}
	inner.OnRoom(w.hasRoom)
	return w
}

// handshaken ends the handshake: reads no longer wait.
func (w *wire) handshaken() { w.waiting = false }

// WritePiece implements [stack.PieceWriter].
func (w *wire) WritePiece(b []byte) bool { return copy(b, w.record) == len(b) }

// Write implements [net.Conn].
func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended { // crypto/tls answers a key update (RFC 8446 §6.1: data after close_notify is ignored)
		return len(b), nil
	}
	rest := b
	if w.err == nil && w.queued() == 0 {
		rest = w.send(b)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case len(rest) == 0:
		return len(b), nil
	case len(w.queue)+len(rest) > maxQueue:
		w.err = errQueueFull
		return 0, w.err
	case w.queue == nil && !w.waiting:
		w.queue = queueBuffers.Get().(*[maxQueue]byte)[:0]
	}
	w.queue = append(w.queue, rest...)
	return len(b), nil
}

// queued returns the number of bytes in the queue. mu is held.
func (w *wire) queued() int { return len(w.queue) - w.sent }

// send passes data to TCP, and returns what TCP has no room for. mu is held.
func (w *wire) send(b []byte) []byte {
	for len(b) > 0 && w.err == nil {
		n := min(len(b), stack.MaxPiece)
		w.record = b[:n]
		ok, err := w.inner.Send(n, w)
		w.record = nil
		if err != nil {
			w.err = err
			return nil
		}
		if !ok {
			break
		}
		b = b[n:]
	}
	return b
}

// hasRoom is called when TCP's send buffer has room again.
func (w *wire) hasRoom() {
	w.mu.Lock()
	if w.queued() > 0 {
		w.sent = len(w.queue) - len(w.send(w.queue[w.sent:]))
	}
	if w.err == nil && w.queued() > 0 {
		w.mu.Unlock()
		return
	}
	w.release()
	w.endQueue()
	f := w.onRoom
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

// release drops the queue. mu is held.
func (w *wire) release() {
	if cap(w.queue) == maxQueue {
		queueBuffers.Put((*[maxQueue]byte)(w.queue[:maxQueue]))
	}
	w.queue, w.sent = nil, 0
}

// endQueue performs the actions that wait for an empty queue. mu is held.
func (w *wire) endQueue() {
	switch {
	case w.close:
		w.close = false
		if w.linger != nil {
			w.linger.Stop()
		}
		_ = w.inner.Close()
	case w.finish && w.err == nil:
		w.finish = false
		w.err = w.inner.CloseWrite()
	}
}

// hasQueue reports whether records wait for room.
func (w *wire) hasQueue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queued() > 0
}

// closeWrite sends FIN after the queue.
func (w *wire) closeWrite() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.finish = true, true
	if w.queued() == 0 {
		w.endQueue()
	}
	return w.err
}

// closeAfterQueue closes the connection after the queue.
func (w *wire) closeAfterQueue() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.close = true
	if w.err != nil || w.queued() == 0 {
		w.endQueue()
		return
	}
	_ = w.inner.SetReadDeadline(time.Unix(1, 0)) // ends Wait
	w.linger = w.clock.AfterFunc(lingerTime, w.inner.Abort)
}

// closeAfterAlert closes the connection after a failed handshake. If data of the peer were left
// unread, TCP could reset the connection, and the alert would be lost. It is therefore read until
// the peer has closed its side, but not longer than a time.
func (w *wire) closeAfterAlert(linger time.Duration) {
	w.mu.Lock()
	w.release()
	w.onRoom = nil
	w.mu.Unlock()
	if linger > 0 && w.inner.CloseWrite() == nil {
		_ = w.inner.SetReadDeadline(w.clock.Now().Add(linger))
		for w.inner.Receive(discard{}) == nil && w.inner.Wait() == nil {
		}
	}
	_ = w.inner.Close()
}

// discard is a consumer that wants everything.
type discard struct{}

// Consume implements [stack.Consumer].
func (discard) Consume([]byte) bool { return true }

// Read implements [net.Conn].
func (w *wire) Read(b []byte) (int, error) {
	for {
		if len(w.rest) > 0 {
			n := copy(b, w.rest)
			if w.rest = w.rest[n:]; len(w.rest) == 0 {
				w.rest = nil
				restBuffers.Put(w.pool)
			}
			return n, nil
		}
		w.into, w.got = b, 0
		err := w.inner.Receive(w)
		w.into = nil
		switch {
		case w.got > 0:
			if w.came += w.got + len(w.rest); w.waiting && w.came > maxReceived {
				return 0, errTooLong
			}
			return w.got, nil
		case errors.Is(err, io.EOF):
			return 0, errTruncated
		case err != nil:
			return 0, err
		case !w.waiting:
			return 0, errNoData
		}
		if err := w.inner.Wait(); err != nil {
			return 0, err
		}
	}
}

// Consume implements [stack.Consumer].
func (w *wire) Consume(b []byte) bool {
	n := copy(w.into[w.got:], b)
	w.got += n
	if n < len(b) {
		if w.rest == nil {
			w.pool = restBuffers.Get().(*[]byte)
			*w.pool = (*w.pool)[:0]
		}
		*w.pool = append(*w.pool, b[n:]...)
		w.rest = *w.pool
	}
	return w.got < len(w.into)
}

// Close implements [net.Conn]. crypto/tls calls it when a handshake is interrupted.
func (w *wire) Close() error {
	w.inner.Abort()
	return nil
}

// LocalAddr implements [net.Conn].
func (w *wire) LocalAddr() net.Addr { return w.inner.LocalAddr() }

// RemoteAddr implements [net.Conn].
func (w *wire) RemoteAddr() net.Addr { return w.inner.RemoteAddr() }

// SetDeadline implements [net.Conn]. Deadlines are those of the stream: here they have no effect.
func (w *wire) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements [net.Conn].
func (w *wire) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements [net.Conn].
func (w *wire) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
