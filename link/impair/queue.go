package impair

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/link"
)

// enqueue adds p to the queue, in which the given number of bytes wait for the rate limit. It
// returns false if the queue is full. d.mu is held.
func (d *direction) enqueue(p []byte, waiting int) bool {
	if d.cfg.Queue > 0 && waiting+len(p) > d.cfg.Queue {
		return false
	}
	d.count.LongestQueue = max(d.count.LongestQueue, waiting+len(p))
	if d.cfg.ECN != (ECN{}) && d.chance(d.cfg.ECN.share(waiting)) && mark(p) {
		d.count.Marked++
	}
	return true
}

// share returns the probability of a mark when this number of bytes is queued.
func (e ECN) share(waiting int) float64 {
	switch {
	case waiting < e.Min:
		return 0
	case waiting >= e.Max:
		return 1
	}
	return float64(waiting-e.Min) / float64(e.Max-e.Min)
}

// The ECN field: two bits after the DSCP (RFC 3168 §5).
const (
	ecnMask               = 3
	notCapable            = 0
	congestionExperienced = 3
)

// mark sets Congestion Experienced on the packet in a frame. It returns false if the packet is not
// ECN-capable.
func mark(f []byte) bool {
	if len(f) < link.EthernetHeaderLen {
		return false
	}
	n := link.NetworkOffset(f)
	ip := f[n:]
	switch binary.BigEndian.Uint16(f[n-2:]) {
	case 0x0800:
		if len(ip) < 20 || ip[1]&ecnMask == notCapable {
			return false
		}
		// The byte is part of a 16-bit word. The header checksum is updated by the difference of that
		// word (RFC 1624).
		sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + uint32(^binary.BigEndian.Uint16(ip))
		ip[1] |= congestionExperienced
		sum += uint32(binary.BigEndian.Uint16(ip))
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
		return true
	case 0x86dd:
		// The traffic class is bits 4 to 11.
		if len(ip) < 40 || ip[1]>>4&ecnMask == notCapable {
			return false
		}
		ip[1] |= congestionExperienced << 4
		return true
	}
	return false
}
