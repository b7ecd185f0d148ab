//go:build !linux

package kernel

// Sending one datagram with each system call.

import (
	"net/netip"
	"syscall"
)

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
		_, err := m.path.out.conn.WriteToUDPAddrPort(b.s.buf[m.start:m.end], m.path.to)
		b.s.count(m, err)
	}
}
