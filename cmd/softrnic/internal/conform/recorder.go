package conform

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/peer"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/link"
)

// recorder keeps the packets of a case.
type recorder struct {
	mu      sync.Mutex
	packets []suite.Packet
}

func (r *recorder) add(sent bool, d peer.Datagram) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = append(r.packets, suite.Packet{Time: time.Now(), Sent: sent, Data: slices.Clone(d)})
}

// take returns and clears the recorded packets.
func (r *recorder) take() []suite.Packet {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.packets
	r.packets = nil
	return taken
}

// recordedLink is a link that records TCP packets to and from the target. It does not implement
// link.Shared, so that no message bypasses it.
type recordedLink struct {
	link.Link
	target netip.Addr
	to     *recorder

	mu  sync.Mutex // guards the segmenter
	cut link.Cutter
}

func (l *recordedLink) record(sent bool, frames []link.Frame) {
	const etherLen, ipLen, tcpLen, protoTCP = 14, 20, 20, 6
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range frames {
		f := frames[i]
		for b := range l.cut.Packets(&f) {
			if len(b) < etherLen+ipLen+tcpLen || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[etherLen+9] != protoTCP {
				continue
			}
			ip := b[etherLen:]
			other := ip[12:16]
			if sent {
				other = ip[16:20]
			}
			if n := int(binary.BigEndian.Uint16(ip[2:])); n <= len(ip) && bytes.Equal(other, l.target.AsSlice()) {
				l.to.add(sent, ip[:n])
			}
		}
	}
}

// Attach implements link.Link.
func (l *recordedLink) Attach(recv link.Receiver) {
	l.Link.Attach(func(frames []link.Frame) {
		l.record(false, frames)
		recv(frames)
	})
}

// Write implements link.Link.
func (l *recordedLink) Write(frames []link.Frame) (int, error) {
	l.record(true, frames)
	return l.Link.Write(frames)
}
