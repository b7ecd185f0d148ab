package trace

import (
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// A UD QP counts its packets to all destinations (IBTA Vol 1 §9.8.3). A capture does not show who
// sends by a QP number: processes behind one address share QP 1, and a restarted one begins again.
// So a PSN that goes back shows another sender, unless the packet is a copy or fills a gap. What is
// known of a sender on QP 1 is the side of an exchange: its PSNs only rise.

const (
	// maxGaps is the most gaps of a UD QP that are kept.
	maxGaps = 16
	// lastPackets is the number of a UD QP's last packets that are searched for a copy.
	lastPackets = 32
)

// speaker is a UD QP as a sender.
type speaker struct {
	next    uint32
	number  int
	began   bool
	several bool // it is known to be more than one sender
	good    int
	gaps    int // number of gaps, also of those that are not kept
	missing []gap
	last    [lastPackets]heard
	at      int
}

type speakerKey struct {
	src netip.Addr
	qp  uint32
}

// heard is a packet by its PSN and ICRC.
type heard struct {
	psn, icrc uint32
	number    int
}

// voice is one side of an exchange as a sender on QP 1.
type voice struct {
	psn    uint32
	number int
}

// unreliable checks the PSN of a UD packet.
func (a *analysis) unreliable(f *frame, p *wire.Packet, icrc uint32) {
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
	if a.copied || a.heardBefore(s, f, p, icrc) {
		a.copied = true
		return
	}
	d := wire.PSNDiff(p.PSN, s.next)
	switch {
	case !s.began || d == 0:
		s.good++
	case d > 0:
		s.gaps++
		a.ev.missing = psns(s.next, wire.PSNAdd(p.PSN, 1<<24-1))
		if len(s.missing) < maxGaps {
			s.missing = append(s.missing, gap{from: s.next, to: wire.PSNAdd(p.PSN, 1<<24-1), number: f.number})
		}
	default:
		var fills bool
		if s.missing, fills = fill(s.missing, p.PSN, 1); !fills {
			a.begunAgain(k, s)
			break
		}
		if k.qp == 1 { // or of another sender
			s.several = true
		} else {
			a.outOfTurn(f, p, s.number)
		}
		return
	}
	s.next, s.number, s.began = wire.PSNAdd(p.PSN, 1), f.number, true
}

// heardBefore reports a packet that is a copy of one of the QP's last ones. UD has no
// retransmissions, and CM's have new PSNs.
func (a *analysis) heardBefore(s *speaker, f *frame, p *wire.Packet, icrc uint32) bool {
	if f.cut {
		return false
	}
	for _, h := range s.last {
		if h.number != 0 && h.psn == p.PSN && h.icrc == icrc {
			a.report(wrong, nil, f.number, "PSN %d of QP %#x comes again: the same packet as %d", p.PSN, p.DETH.SrcQP, h.number)
			return true
		}
	}
	s.last[s.at] = heard{p.PSN, icrc, f.number}
	s.at = (s.at + 1) % lastPackets
	return false
}

// begunAgain begins a new count, after the judgement of the old one.
func (a *analysis) begunAgain(k speakerKey, s *speaker) {
	s.several = s.several || k.qp == 1
	a.judgeSpeaker(k, s)
	s.gaps, s.good, s.missing = 0, 1, nil
}

func (a *analysis) outOfTurn(f *frame, p *wire.Packet, before int) {
	a.reordered(nil, f.number, "PSN %d of QP %#x comes after packet %d, which has a later one", p.PSN, p.DETH.SrcQP, before)
}

// said checks the PSN of a side of an exchange.
func (a *analysis) said(v *voice, f *frame, p *wire.Packet) {
	switch d := wire.PSNDiff(p.PSN, v.psn); {
	case v.number == 0 || d > 0:
		*v = voice{p.PSN, f.number}
	case d == 0:
		a.report(wrong, nil, f.number, "PSN %d of QP 1 comes again: packet %d had it", p.PSN, v.number)
	default:
		a.outOfTurn(f, p, v.number)
	}
}

// judgeSpeaker reports the missing packets of a UD QP. If there are many, or it is more than one
// sender, the packets were sent to other destinations, or not at all.
func (a *analysis) judgeSpeaker(k speakerKey, s *speaker) {
	if s.several || s.gaps*2 > s.good {
		return
	}
	for _, g := range s.missing {
		a.report(doubtful, nil, g.number, "%s missing before packet %d of UD QP %#x of %v, unless sent to a host that is not in the capture",
			psns(g.from, g.to), g.number, k.qp, k.src)
	}
}
