package trace

import (
	"net/netip"
	"slices"
	"time"
)

// The IPv4 identification of a sender that counts its packets can show what no other field shows: a
// missing acknowledgement that a later one includes, a duplicate packet, or the reordering of
// unordered packets. Linux counts the UDP packets from one address to another, and those of each
// TCP connection. Other senders count those of a port, or do not count (RFC 6864). Linux sends
// datagrams that may not be fragmented with 0, and counts from there within the packets of one
// superframe. So a packet that does not fit is only doubtful, and only if nearly all others fit.

const (
	// maxSenders is the most senders whose identifications are followed at a time.
	maxSenders = 1 << 14
	// leastMSS is the smallest segment size of a segmented TCP superframe.
	leastMSS = 1200
	// remembered is the number of a sender's last packets that are searched for a copy.
	remembered = 32
	// burst is the time within which Linux counts by one for UDP. Across ticks of its clock it adds
	// a random number. The shortest tick is 1 ms, and a capture's times differ from the sender's.
	burst = int64(100 * time.Microsecond)
)

// few is the largest step of an identification that is taken for missing packets. A sender that
// skips more has used the numbers for packets outside the capture.
const few = 3

// most is the largest number of packets that do not fit and are reported. With more, the sender
// counts in another way.
const most = 3

type senderKey struct {
	src, dst     netip.Addr
	proto        uint8
	ports        bool // the packets of these ports; else of all ports
	sport, dport uint16
}

// sender has the packets from one address, or from one of its ports, to another address.
type sender struct {
	order   int
	last    uint16
	time    int64
	began   bool
	before  int64    // time of the packet before the last one
	copies  []copied // that may be retransmissions, as the sender was not known to count
	trains  bool     // it sends 0, which is no count
	span    int      // the step that the last packet may have counted
	good    int      // packets with the next number
	skips   int
	skipped []skip // the first skips
	backs   int
	back    []skip
	proven  int                // packets with a higher number than the one before
	recent  [remembered]uint64 // identification and check value of the last packets
	at      int
	numbers [remembered]int
}

// copied is a packet with the same bytes and identification as an earlier one.
type copied struct {
	number, of int
	id         uint16
}

type skip struct {
	number int
	n      int
	from   uint32 // the first missing PSN of a UD QP, or identification
}

// follow checks the identification of a packet. check is its ICRC or a value of its TCP header.
func (a *analysis) follow(f *frame, check uint32) {
	if !f.src.Is4() || f.v1 {
		return
	}
	if f.kind == segment {
		s := a.senderOf(0, senderKey{f.src, f.dst, protoTCP, true, f.srcPort, f.dstPort})
		if !a.copy(s, f, check) {
			a.identification(s, f, true)
		}
		return
	}
	s := a.senderOf(0, senderKey{f.src, f.dst, protoUDP, true, f.srcPort, 0})
	if !a.copy(s, f, check) {
		a.identification(s, f, false)
		a.identification(a.senderOf(1, senderKey{src: f.src, dst: f.dst, proto: protoUDP}), f, false)
	}
}

func (a *analysis) senderOf(cache int, k senderKey) *sender {
	if s := a.lastSender[cache]; s != nil && a.lastSenderKey[cache] == k {
		return s
	}
	s := a.senders[k]
	if s == nil {
		if len(a.senders) >= maxSenders {
			a.judgeAll()
		}
		a.ordered++
		s = &sender{order: a.ordered}
		a.senders[k] = s
	}
	a.lastSender[cache], a.lastSenderKey[cache] = s, k
	return s
}

// surely is how many packets of a sender must have risen in number for its numbers to identify its
// packets.
const surely = 4

// copy reports whether the packet is a copy of one of the last packets. The same bytes with the
// same number are a retransmission, if the sender does not count.
func (a *analysis) copy(s *sender, f *frame, check uint32) bool {
	mark := uint64(f.id)<<32 | uint64(check)
	if f.counts && !s.trains && s.began && int16(f.id-s.last) <= 0 { // a higher number is not a copy
		for i, m := range s.recent {
			if m != mark || s.numbers[i] == 0 {
				continue
			}
			c := copied{f.number, s.numbers[i], f.id}
			if s.proven >= surely {
				a.duplicated(c)
				a.copied = true
				return true
			}
			if len(s.copies) < most {
				s.copies = append(s.copies, c)
			}
		}
	}
	s.recent[s.at], s.numbers[s.at] = mark, f.number
	s.at = (s.at + 1) % remembered
	return false
}

// identification checks whether a packet's identification is the next one.
func (a *analysis) identification(s *sender, f *frame, connection bool) {
	if !f.counts && (!s.began || s.last < 1<<16-1<<8) { // a count comes to 0 once in 65,536 packets
		s.trains = s.trains || !connection // TCP answers with 0 where it has no connection
		return
	}
	d := int(int16(f.id - s.last))
	if s.began && d > 0 {
		s.proven++
	}
	switch {
	case !s.began:
	case d == 1 || d > 0 && d <= s.span:
		s.good++
	case d <= 0:
		if s.proven = 0; s.fills(f.id) {
			s.proven = surely
		}
		if s.backs++; len(s.back) < most {
			s.back = append(s.back, skip{number: f.number, n: -d})
		}
		if d > -64 { // a reordered packet, not the beginning of a new count
			return
		}
	case d <= few && (connection || a.within(f.time-s.time, burst) && a.within(s.time-s.before, burst)):
		if s.skips++; len(s.skipped) < most {
			s.skipped = append(s.skipped, skip{number: f.number, n: d - 1, from: uint32(s.last + 1)})
		}
	default:
		s.good++
	}
	s.before = s.time
	s.last, s.time, s.began = f.id, f.time, true
	s.span = (f.length + leastMSS - 1) / leastMSS // each segment of a superframe counts
}

// judgeAll reports the findings of all identifications at the end. For UDP it chooses the better
// fit: a count per destination address, or per port.
func (a *analysis) judgeAll() {
	type fit struct{ bad, by int } // numbers of packets that do not fit, per port and in all
	fits := map[pair]fit{}
	var all []senderKey
	for k, s := range a.senders {
		all = append(all, k)
		if k.proto == protoUDP {
			if s := a.senders[k]; !s.trains && s.good >= surely && s.backs <= 2*most && s.backs*4 <= s.good {
				for _, c := range s.copies {
					a.duplicated(c)
				}
			}
			f := fits[pair{k.src, k.dst}]
			if k.ports {
				f.by += s.skips + s.backs
			} else {
				f.bad = s.skips + s.backs
			}
			fits[pair{k.src, k.dst}] = f
		}
	}
	slices.SortFunc(all, func(x, y senderKey) int { return a.senders[x].order - a.senders[y].order })
	for _, k := range all {
		if s := a.senders[k]; !s.trains && s.good >= surely && s.backs <= 2*most && s.backs*4 <= s.good {
			for _, c := range s.copies {
				a.duplicated(c)
			}
		}
		f := fits[pair{k.src, k.dst}]
		if k.proto == protoTCP || k.ports == (f.by < f.bad) {
			a.judge(a.senders[k])
		}
	}
	clear(a.senders)
	a.lastSender = [2]*sender{}
}

func (a *analysis) duplicated(c copied) {
	a.report(wrong, nil, c.number, "the same packet as %d, with the same identification %#04x: it was duplicated on its way", c.of, c.id)
}

// fills removes a number from those that were skipped, and reports whether it was one.
func (s *sender) fills(id uint16) bool {
	for i, x := range s.skipped {
		if uint32(id-uint16(x.from)) < uint32(x.n) {
			if s.skipped[i].n--; x.n == 1 {
				s.skipped = slices.Delete(s.skipped, i, i+1)
				s.skips--
			}
			return true
		}
	}
	return false
}

func (a *analysis) judge(s *sender) {
	if s.trains {
		return
	}
	if s.skips <= most && s.skips*4 <= s.good {
		for _, x := range s.skipped {
			a.report(doubtful, nil, x.number,
				"the IPv4 identification skips %d from %#04x on before it, where the sender's %d others count by one: packets are "+
					"missing", x.n, x.from, s.good)
		}
	}
	if s.backs <= most && s.backs*4 <= s.good {
		for _, x := range s.back {
			a.reordered(nil, x.number, "the IPv4 identification goes back by %d, where the sender's %d others count", x.n, s.good)
		}
	}
}
