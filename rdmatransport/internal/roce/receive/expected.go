package receive

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// expected is the packet that comes next, if all goes well.
type expected struct {
	psn    uint32    // its PSN
	msn    uint32    // messages completed, 24 bits
	mark   wire.Mark // of the peer's requests, if it marks them; 0 where marks are not looked at
	marked bool      // one has come in its turn with the mark: the peer marks them all
}

func (e *expected) init(psn uint32, mark wire.Mark) { *e = expected{psn: psn, mark: mark} }

// marking is what the mark of a request packet says.
type marking uint8

const (
	unmarked marking = iota
	newest           // see wire.Mark
	again
)

// marking is that of a packet.
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

// marks notes that the peer marks its packets.
func (e *expected) marks() { e.marked = true }

// lacks reports whether a packet is not the peer's: all that the peer sends is marked.
func (e *expected) lacks(m marking) bool { return m == unmarked && e.marked }

// advance goes n PSNs on.
func (e *expected) advance(n uint32) { e.psn = wire.PSNAdd(e.psn, n) }

// restart goes to a PSN, whatever came before: nobody will send what is missing.
func (e *expected) restart(psn uint32) { e.psn = psn }

// endMessage counts a message.
func (e *expected) endMessage() { e.msn = wire.PSNAdd(e.msn, 1) }
