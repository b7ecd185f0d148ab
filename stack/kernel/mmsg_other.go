//go:build !linux

package kernel

// Sending one datagram with each system call.

import (
	"net"
	"net/netip"
	"syscall"
	"time"
)

// outConn is a socket for sending.
type outConn = net.UDPConn

func newOutConn(udp *net.UDPConn) (*outConn, syscall.RawConn, error) {
	raw, err := udp.SyscallConn()
	return udp, raw, err
}

func canSegment(syscall.RawConn) bool { return false }

// destination is empty: these systems determine the traffic class and the hop limit.
type destination struct{}

func (*destination) init(netip.AddrPort, int, uint8, uint8) {}

// sendBatch sends messages one by one.
type sendBatch struct{ s *sender }

func (b *sendBatch) init(s *sender) { b.s = s }

func (b *sendBatch) send(out []message) {
	for i := range out {
		m := &out[i]
		err := net.ErrClosed
		if s := m.path.out.socket.Load(); s != nil {
			// The QP is locked, so the wait must be short. A datagram that finds no room is lost and
			// counted.
			_ = s.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
			_, err = s.conn.WriteToUDPAddrPort(b.s.buf[m.start:m.end], m.path.to)
		}
		b.s.count(m, err)
	}
}
