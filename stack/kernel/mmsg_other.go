//go:build !linux

package kernel

// Sending and receiving one datagram with each system call.

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
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

// batch is the buffer of one datagram.
type batch struct{ buf [1 << 16]byte }

func (*batch) init(*inlet) {}

// run receives until the socket is closed.
func (in *inlet) run() {
	for {
		n, from, err := in.conn.ReadFromUDPAddrPort(in.batch.buf[:])
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as an ICMP error for something that was sent
			time.Sleep(time.Millisecond)
			continue
		}
		in.mu.Lock()
		in.deliver(&arrival{payload: in.batch.buf[:n], from: from}, false)
		in.mu.Unlock()
	}
}

// poll receives nothing: what comes is received by run.
func (in *inlet) poll() bool { return false }
