package trace

import (
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// The IPv4 identification of a sender that counts its packets can show what no other field shows: a
// missing acknowledgement that a later one includes, a duplicate packet, or the reordering of
// unordered packets. Linux counts the UDP packets from one address to another, and those of each
// TCP connection. Other senders count those of a port, or do not count (RFC 6864). So a packet that
// does not fit is only doubtful, and only if nearly all others fit.

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
	span    int // the step that the last packet may have counted
	good    int // packets with the next number
	skips   int
	skipped []skip // the first skips
	backs   int
	back    []skip
	recent  [remembered]uint64 // identification and check value of the last packets
	at      int
	numbers [remembered]int
}

type skip struct {
	number int
	n      int
	from   uint32 // the first missing PSN of a UD QP, or identification
}

// follow checks the identification of a packet. check is its ICRC or a value of its TCP header.
func (a *analysis) follow(f *frame, check uint32) {
	if !f.counts {
		return
	}
	if f.kind == segment {
		s := a.senderOf(0, senderKey{f.src, f.dst, protoTCP, true, f.srcPort, f.dstPort})
		if !a.copy(s, f, check) {
			s.identification(f, true)
		}
		return
	}
	s := a.senderOf(0, senderKey{src: f.src, dst: f.dst, proto: protoUDP})
	if !a.copy(s, f, check) {
		s.identification(f, false)
		a.senderOf(1, senderKey{f.src, f.dst, protoUDP, true, f.srcPort, 0}).identification(f, false)
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

// copy reports whether the packet is a copy of one of the last packets.
func (a *analysis) copy(s *sender, f *frame, check uint32) bool {
	mark := uint64(f.id)<<32 | uint64(check)
	if s.began && int16(f.id-s.last) <= 0 { // a higher number is not a copy
		for i, m := range s.recent {
			if m == mark && s.numbers[i] != 0 {
				a.report(wrong, nil, f.number, "the same packet as %d, with the same identification %#04x: it was duplicated on its way",
					s.numbers[i], f.id)
				a.copied = true
				return true
			}
		}
	}
	s.recent[s.at], s.numbers[s.at] = mark, f.number
	s.at = (s.at + 1) % remembered
	return false
}

// identification checks whether a packet's identification is the next one.
func (s *sender) identification(f *frame, connection bool) {
	d := int(int16(f.id - s.last))
	switch {
	case !s.began:
	case d == 1 || d > 0 && d <= s.span:
		s.good++
	case d <= 0:
		if s.backs++; len(s.back) < most {
			s.back = append(s.back, skip{number: f.number, n: -d})
		}
		if d > -64 { // a reordered packet, not the beginning of a new count
			return
		}
	case d <= few && (connection || f.time-s.time < burst):
		if s.skips++; len(s.skipped) < most {
			s.skipped = append(s.skipped, skip{number: f.number, n: d - 1, from: uint32(s.last + 1)})
		}
	default:
		s.good++
	}
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
		f := fits[pair{k.src, k.dst}]
		if k.proto == protoTCP || k.ports == (f.by < f.bad) {
			a.judge(a.senders[k])
		}
	}
	clear(a.senders)
	a.lastSender = [2]*sender{}
}

func (a *analysis) judge(s *sender) {
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

// speaker is a UD QP as a sender.
type speaker struct {
	next    uint32
	number  int
	time    int64
	began   bool
	good    int
	gaps    int
	skipped []skip
	stats   statistics
}

type speakerKey struct {
	src netip.Addr
	qp  uint32
}

// unreliable checks the PSN of a UD packet. Its sender counts packets to all destinations (IBTA Vol
// 1 §9.8.3).
func (a *analysis) unreliable(f *frame, p *wire.Packet) {
	k := speakerKey{f.src, p.DETH.SrcQP}
	s := a.speakers[k]
	if s == nil {
		if len(a.speakers) >= maxSenders {
			for k, s := range a.speakers {
				a.judgeSpeaker(k, s)
				delete(a.speakers, k)
			}
		}
		s = new(speaker)
		a.speakers[k] = s
	}
	d := wire.PSNDiff(p.PSN, s.next)
	switch {
	case !s.began || d == 0:
		s.good++
	case d > 0:
		s.gaps++
		s.stats.Gaps++
		a.ev.missing = psns(s.next, wire.PSNAdd(p.PSN, 1<<24-1))
		if len(s.skipped) < most {
			s.skipped = append(s.skipped, skip{f.number, int(d), s.next})
		}
	case !a.copied && s.late(p.PSN):
		a.reordered(nil, f.number, "PSN %d of QP %#x comes after PSN %d of packet %d", p.PSN, k.qp, wire.PSNAdd(s.next, 1<<24-1), s.number)
		return
	case !a.copied:
		a.report(wrong, nil, f.number, "PSN %d of QP %#x comes again or late: packet %d had PSN %d", p.PSN, k.qp, s.number,
			wire.PSNAdd(s.next, 1<<24-1))
		return
	default:
		return
	}
	s.next, s.number, s.time, s.began = wire.PSNAdd(p.PSN, 1), f.number, f.time, true
	s.stats.Packets++
	s.stats.Messages++
	s.stats.Bytes += uint64(len(p.Payload))
}

// late removes a PSN from the missing ones if it is the first or last of a range.
func (s *speaker) late(psn uint32) bool {
	for i := range s.skipped {
		x := &s.skipped[i]
		switch d := wire.PSNDiff(psn, x.from); {
		case x.n == 1 && d == 0:
			s.skipped = slices.Delete(s.skipped, i, i+1)
			s.gaps--
			return true
		case d == 0:
			x.from = wire.PSNAdd(x.from, 1)
		case int(d) != x.n-1 || d < 0:
			continue
		}
		x.n--
		return true
	}
	return false
}

// judgeSpeaker reports the missing packets of a UD QP. If there are many, the QP has sent them to
// other destinations.
func (a *analysis) judgeSpeaker(k speakerKey, s *speaker) {
	if s.gaps*2 > s.good {
		return
	}
	for _, x := range s.skipped {
		a.report(wrong, nil, x.number, "%s missing before packet %d of UD QP %#x of %v", psns(x.from, wire.PSNAdd(x.from, uint32(x.n-1))),
			x.number, k.qp, k.src)
	}
}
