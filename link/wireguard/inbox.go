package wireguard

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/link"
)

// batchFrames is the number of packets that WireGuard's device passes on together at most.
const batchFrames = 128

var batches = sync.Pool{New: func() any { return new([batchFrames]link.Frame) }}

const (
	typeIPv4, typeARP, typeIPv6 = 0x0800, 0x0806, 0x86dd
	ipv4Len, ipv6Len            = 20, 40
)

// receive passes decrypted packets of one peer to the host. WireGuard has checked their lengths,
// and that their source addresses are the peer's. The Ethernet header is written into the room
// before each packet that had the tunnel's header.
func (l *Link) receive(packets [][]byte, offset int) {
	recv := l.recv.Load()
	if recv == nil {
		return
	}
	batch := batches.Get().(*[batchFrames]link.Frame)
	defer batches.Put(batch)
	var from *peer
	for len(packets) > 0 {
		n := 0
		for _, b := range packets[:min(batchFrames, len(packets))] {
			frame := b[offset-link.EthernetHeaderLen : len(b) : len(b)]
			src, ok := header(frame, l.mac)
			if !ok {
				continue
			}
			if from == nil { // all packets are of one peer
				if from = l.routes.find(src); from == nil {
					continue
				}
			}
			copy(frame[6:], from.mac[:])
			batch[n] = link.Frame{Data: frame}
			n++
		}
		if n > 0 {
			(*recv)(batch[:n])
			clear(batch[:n])
		}
		packets = packets[min(batchFrames, len(packets)):]
	}
}

// header writes the destination address and the type of a frame whose packet is complete. It
// returns the packet's source.
func header(frame []byte, own [6]byte) (src netip.Addr, ok bool) {
	ip := frame[link.EthernetHeaderLen:]
	switch {
	case len(ip) >= ipv4Len && ip[0]>>4 == 4:
		copy(frame, own[:])
		if ip[16]>>4 == 0xe { // RFC 1112 §6.4
			copy(frame, []byte{0x01, 0, 0x5e, ip[17] & 0x7f, ip[18], ip[19]})
		} else if [4]byte(ip[16:]) == [4]byte{255, 255, 255, 255} {
			copy(frame, []byte{255, 255, 255, 255, 255, 255})
		}
		binary.BigEndian.PutUint16(frame[12:], typeIPv4)
		return netip.AddrFrom4([4]byte(ip[12:])), true
	case len(ip) >= ipv6Len && ip[0]>>4 == 6:
		copy(frame, own[:])
		if ip[24] == 0xff { // RFC 2464 §7
			copy(frame, []byte{0x33, 0x33, ip[36], ip[37], ip[38], ip[39]})
		}
		binary.BigEndian.PutUint16(frame[12:], typeIPv6)
		return netip.AddrFrom16([16]byte(ip[8:])), true
	}
	return src, false
}
