package wireguard

import (
	"golang.zx2c4.com/wireguard/device"

	"github.com/softrnic/softrnic/link"
)

// maxPayload is the most bytes of an UDP superframe.
const maxPayload = 65535 - 20 - 8

// A batch is what WireGuard's device reads at a time: as many packets as fit in one UDP superframe,
// in buffers with room for the tunnel's header before an offset. The buffers are longer than any
// packet.
type batch struct {
	bufs   [][]byte
	sizes  []int
	offset int
	mtu    int
	n      int // packets
	top    int // size of the largest packet, padded
}

// padded returns the size that WireGuard gives to a packet.
func (b *batch) padded(size int) int {
	const multiple = device.PaddingMultiple
	return min((size+multiple-1)/multiple*multiple, b.mtu)
}

// full reports whether another packet like the largest has no room.
func (b *batch) full() bool {
	return b.n == len(b.bufs) || b.n > 0 && (b.n+1)*(b.top+device.MessageTransportSize) > maxPayload
}

func (b *batch) add(size int) {
	b.sizes[b.n] = size
	b.n++
	b.top = max(b.top, b.padded(size))
}

// fill cuts packets of a frame into the buffers. It returns false if they are full.
func (b *batch) fill(s *link.Segmenter) bool {
	for !b.full() {
		// The Ethernet header is where the tunnel's will be.
		n, ok := s.Next(b.bufs[b.n][b.offset-link.EthernetHeaderLen:])
		if !ok {
			return true
		}
		b.add(n - link.EthernetHeaderLen)
	}
	return s.Done()
}

// take copies packets of a queue.
func (b *batch) take(q *queue) {
	for ; !q.empty() && !b.full(); q.next++ {
		n := q.sizes[q.next]
		b.add(copy(b.bufs[b.n][b.offset:], q.data[q.begin+link.EthernetHeaderLen:q.begin+n]))
		q.begin += n
	}
}

// maxLevelled is the most bytes that are added to a packet: the longest extended headers of RoCE
// (AtomicETH), padded.
const maxLevelled = 32

// level adds zeros to packets that are a little shorter than the largest, such as those of a
// message's middle beside its first, which has an RETH. UDP superframes have packets of one size.
// WireGuard itself adds up to 15 zeros; receivers go by the length in the IP header.
func (b *batch) level() {
	for i, size := range b.sizes[:b.n] {
		if p := b.padded(size); p < b.top && p+maxLevelled >= b.top {
			clear(b.bufs[i][b.offset+size : b.offset+b.top])
			b.sizes[i] = b.top
		}
	}
}
