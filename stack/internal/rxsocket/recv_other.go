//go:build !linux

package rxsocket

// Receiving one datagram with each system call.

import (
	"errors"
	"net"
	"time"
)

// batch is the buffer of one datagram.
type batch struct {
	conn *net.UDPConn
	buf  [1 << 16]byte
}

func (s *Socket) init(conn *net.UDPConn) (err error) {
	s.conn, s.batch.conn = conn, conn
	s.raw, err = conn.SyscallConn()
	return err
}

// Run receives until the socket is closed.
func (s *Socket) Run() {
	for {
		n, from, err := s.batch.conn.ReadFromUDPAddrPort(s.batch.buf[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // for example an ICMP error for a sent datagram
			time.Sleep(time.Millisecond)
			continue
		}
		s.mu.Lock()
		s.receiver.Deliver(&Arrival{Payload: s.batch.buf[:n], From: from}, false)
		s.mu.Unlock()
	}
}

// Close ends reception: Run returns soon.
func (s *Socket) Close() {
	s.ended.Store(true)
	_ = s.conn.Close()
}

// Poll receives nothing: Run does.
func (s *Socket) Poll() bool { return false }

// Drain receives nothing: Run does.
func (s *Socket) Drain() {}

// EndPoll does nothing.
func (s *Socket) EndPoll() {}
