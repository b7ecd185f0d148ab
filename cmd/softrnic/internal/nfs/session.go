package nfs

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	gonfs "github.com/willscott/go-nfs"
)

// session is a connection of go-nfs, which serves one call after the other, with its own view of
// the export. It is go-nfs's listener and connection: calls and replies are passed in memory.
type session struct {
	view    *view
	calls   chan []byte // with record marks (RFC 5531 §11)
	replies chan []byte
	closing sync.Once
	closed  chan struct{}

	// Only go-nfs's goroutines use these.
	reading  []byte // the rest of a call
	writing  []byte // the beginning of a reply
	accepted bool
}

func newSession(e *export) *session {
	s := &session{view: &view{export: e}, calls: make(chan []byte), replies: make(chan []byte, 1), closed: make(chan struct{})}
	server := &gonfs.Server{Handler: s.view} // its ID is not used: correct sets the verifier
	go func() { _ = server.Serve(s) }()      // until close
	return s
}

var errSession = errors.New("go-nfs has closed its connection")

// do passes a call to go-nfs and returns the reply.
func (s *session) do(record []byte) ([]byte, error) {
	select {
	case s.calls <- record:
	case <-s.closed:
		return nil, errSession
	}
	select {
	case reply := <-s.replies:
		return reply, nil
	case <-s.closed:
		return nil, errSession
	}
}

// ended reports whether go-nfs has closed the connection.
func (s *session) ended() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Accept returns the session itself once, and then waits for its end.
func (s *session) Accept() (net.Conn, error) {
	if !s.accepted {
		s.accepted = true
		return s, nil
	}
	<-s.closed
	return nil, net.ErrClosed
}

func (s *session) Close() error {
	s.closing.Do(func() { close(s.closed) })
	return nil
}

func (s *session) Read(b []byte) (int, error) {
	if len(s.reading) == 0 {
		select {
		case s.reading = <-s.calls:
		case <-s.closed:
			return 0, io.EOF
		}
	}
	n := copy(b, s.reading)
	if s.reading = s.reading[n:]; len(s.reading) == 0 {
		s.reading = nil // not to retain the call
	}
	return n, nil
}

func (s *session) Write(b []byte) (int, error) {
	s.writing = append(s.writing, b...)
	if len(s.writing) < 4 {
		return len(b), nil
	}
	n := 4 + int(binary.BigEndian.Uint32(s.writing)&^lastFragment)
	if len(s.writing) < n {
		if cap(s.writing) < n {
			s.writing = append(make([]byte, 0, n), s.writing...)
		}
		return len(b), nil
	}
	select {
	case s.replies <- s.writing[4:n]:
	case <-s.closed:
		return 0, net.ErrClosed
	}
	s.writing = nil
	return len(b), nil
}

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "memory" }

func (s *session) Addr() net.Addr                   { return memoryAddr{} }
func (s *session) LocalAddr() net.Addr              { return memoryAddr{} }
func (s *session) RemoteAddr() net.Addr             { return memoryAddr{} }
func (s *session) SetDeadline(time.Time) error      { return nil }
func (s *session) SetReadDeadline(time.Time) error  { return nil }
func (s *session) SetWriteDeadline(time.Time) error { return nil }
