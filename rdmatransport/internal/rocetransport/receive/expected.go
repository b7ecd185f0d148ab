package receive

import "github.com/softrnic/softrnic/rdmatransport/wire"

// expected is the packet that is expected next.
type expected struct {
	psn    uint32    // its PSN
	msn    uint32    // messages completed, 24 bits
	mark   wire.Mark // mark of the peer's requests; 0 if marks are ignored
	marked bool      // an expected packet had the mark, so the peer marks all packets
}

func (e *expected) init(psn uint32, mark wire.Mark) { *e = expected{psn: psn, mark: mark} }

// marking is the meaning of a request packet's mark.
type marking uint8

const (
	unmarked marking = iota
	newest           // see wire.Mark
	again
)

// marking returns the marking of a packet.
func (e *expected) marking(p *wire.Packet) marking {
	switch m := e.mark; {
	case m == 0:
	case p.Reserved7 == m.Newest():
		return newest
	case p.Reserved7 == m.Again():
		return again
	}
	return unmarked
}

// setMarked records that the peer marks its packets.
func (e *expected) setMarked() { e.marked = true }

// lacksMark reports whether a packet lacks the mark of all the peer's packets, so that it is not
// the peer's.
func (e *expected) lacksMark(m marking) bool { return m == unmarked && e.marked }

// advance moves n PSNs ahead.
func (e *expected) advance(n uint32) { e.psn = wire.PSNAdd(e.psn, n) }

// restart continues at a PSN; packets missing before it will not be sent again.
func (e *expected) restart(psn uint32) { e.psn = psn }

// endMessage counts a message.
func (e *expected) endMessage() { e.msn = wire.PSNAdd(e.msn, 1) }
