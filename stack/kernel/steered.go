package kernel

import (
	"net/netip"
	"os"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// steered checks what arrives at a socket that a hub has opened for this process. The kernel steers
// datagrams to it by the first one of a superframe. Those for QPs of other processes are dropped,
// and so is everything from an own address, which the hub must check.
type steered struct {
	shared *sharedPort
	qpns   stack.Range
	mixed  netip.AddrPort // the peer that was last reported to the hub
}

// addSocket receives from a socket of the hub's.
func (s *sharedPort) addSocket(a netip.Addr, f *os.File) error {
	in := &socket{delivery: delivery{port: s.port}, steered: &steered{shared: s, qpns: s.Numbers().QPNs}}
	var err error
	if in.Socket, err = rxsocket.OpenFile(a, f, in); err != nil {
		return err
	}
	return s.add(in)
}

// drainSockets receives from the sockets of the hub's.
func (s *sharedPort) drainSockets() {
	for _, in := range *s.in.Load() {
		if in.steered != nil {
			in.Drain()
		}
	}
}

// endSockets closes the sockets of the hub's.
func (s *sharedPort) endSockets() {
	for _, in := range *s.in.Load() {
		if in.steered != nil {
			s.remove(in.Addr())
		}
	}
}

// bthLen is the length of a BTH. The destination QPN is at destQPN.
const (
	bthLen  = 12
	destQPN = 5
)

// owns reports whether a datagram is for one of this process's QPs.
func (t *steered) owns(b []byte) bool {
	return len(b) >= bthLen && t.qpns.Contains(uint32(b[destQPN])<<16|uint32(b[destQPN+1])<<8|uint32(b[destQPN+2]))
}

// isOwn reports whether all datagrams of an arrival are for this process.
func (t *steered) isOwn(a *hub.Arrival) bool {
	size := a.Segment
	if size <= 0 {
		size = max(len(a.Payload), 1)
	}
	for b := a.Payload; len(b) > 0; b = b[min(size, len(b)):] {
		if !t.owns(b[:min(size, len(b))]) {
			return false
		}
	}
	return !t.shared.nic.has(a.From.Addr().Unmap().WithZone(""))
}

// deliverOwn delivers the datagrams of an arrival that are for this process. If the peer's
// superframes are for several processes, the hub passes on the next ones.
func (in *socket) deliverOwn(a *hub.Arrival, polled bool) {
	t := in.steered
	from := netip.AddrPortFrom(a.From.Addr().Unmap().WithZone(""), a.From.Port())
	if t.shared.nic.has(from.Addr()) || a.Segment <= 0 || len(a.Payload) == 0 {
		in.port.counters.rxDropped.Add(1)
		return
	}
	begin, own, others := 0, false, uint64(0)
	for n := 0; n*a.Segment < len(a.Payload); n++ {
		end := min((n+1)*a.Segment, len(a.Payload))
		if t.owns(a.Payload[n*a.Segment : end]) {
			own = true
			if end < len(a.Payload) {
				continue
			}
			n++
		} else {
			others++
		}
		if begin < n {
			part := *a
			part.Payload = a.Payload[begin*a.Segment : min(n*a.Segment, len(a.Payload))]
			part.ID = uint16(begin)
			if n-begin == 1 {
				part.Segment = 0
			}
			in.deliver(&part, polled)
		}
		begin = n + 1
	}
	in.port.counters.rxDropped.Add(others)
	if own && t.mixed != from {
		t.mixed = from
		t.shared.Mixed(in.Addr(), from)
	}
}
