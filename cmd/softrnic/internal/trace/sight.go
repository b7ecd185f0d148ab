package trace

import (
	"time"
)

// A capture of several interfaces, or of a node that sends to itself, has some packets more than
// once: at each point that they pass. Such a packet is analysed where it is seen first. A copy that
// the network made passes the same points again, and is analysed.

// point is where a packet was captured.
type point struct {
	intf      int    // of a pcapng file
	index     uint32 // of the interface, in a cooked capture
	direction uint8  // sent or received, in the numbers of the format
	depth     uint8  // number of VLAN tags and tunnels around it
	nowhere   bool   // a cooked capture of the first version, which has no interfaces
}

const (
	// maxPoints is the most points that are told apart.
	maxPoints = 64
	// seenSets and seenWays are the number of sets of packets that other points may show again, and
	// the number of packets in each, of which the oldest is replaced.
	seenSets, seenWays = 1 << 11, 8
	// apart is the longest time between two points of one machine, if the capture does not tell them
	// apart. A retransmission takes longer.
	apart = int64(time.Millisecond)
)

// sighting is a packet with the points at which it was seen.
type sighting struct {
	mark   uint64
	time   int64
	number int
	points uint64 // a bit for each
	first  uint64 // the bit of the first
}

// pointOf returns the bit of a packet's point.
func (a *analysis) pointOf(f *frame) uint64 {
	if a.lastBit != 0 && a.lastPoint == f.point {
		return a.lastBit
	}
	bit, is := a.points[f.point]
	if !is {
		bit = 1 << (min(len(a.points), maxPoints-1))
		if len(a.points) < maxPoints {
			a.points[f.point] = bit
		}
	}
	a.lastPoint, a.lastBit = f.point, bit
	return bit
}

// seenElsewhere reports whether the packet was seen before, at another point. mark tells it from
// other packets, and from its own retransmissions if its sender counts its packets.
func (a *analysis) seenElsewhere(f *frame, mark uint64) bool {
	mark ^= uint64(f.id) << 48
	mark *= 0x9e3779b97f4a7c15 // the upper bits of the product depend on all bits
	bit := a.pointOf(f)
	set := &a.seen[mark>>53]
	s := &set[0]
	for i := range set {
		if set[i].mark == mark && set[i].number != 0 {
			s = &set[i]
			break
		}
		if set[i].number < s.number {
			s = &set[i]
		}
	}
	if s.number == 0 || s.mark != mark {
		*s = sighting{mark, f.time, f.number, bit, bit}
		return false
	}
	again := s.points&bit != 0
	if again && f.point.nowhere {
		again = !a.within(f.time-s.time, apart)
	}
	switch {
	case !again:
		s.points |= bit
		a.ev.repeats, a.ev.why = s.number, "at another point of the capture"
		a.ev.class = control
		a.counts.Elsewhere++
		return true
	case bit == s.first:
		*s = sighting{mark, f.time, f.number, bit, bit}
	}
	return false
}
