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

// way is where a path leads: nothing more is to be prepared. The traffic class and the hop limit are the system's.
type way struct{}

func (*way) init(netip.AddrPort, int, uint8, uint8) {}

// sendBatch sends messages one by one.
type sendBatch struct{ s *sender }

func (b *sendBatch) init(s *sender) { b.s = s }

func (b *sendBatch) send(out []message) {
	for i := range out {
		m := &out[i]
		err := net.ErrClosed
		if s := m.path.out.socket.Load(); s != nil {
			// With the QP locked it must not wait for long; what finds no room by then is lost, and counted.
			_ = s.conn.SetWriteDeadline(time.Now().Add(patience))
			_, err = s.conn.WriteToUDPAddrPort(b.s.buf[m.start:m.end], m.path.to)
		}
		b.s.count(m, err)
	}
}
