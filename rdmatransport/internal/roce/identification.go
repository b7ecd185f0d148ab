package roce

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/roce/ipid"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
)

// On the path: the IPv4 identification of packets from a stack that does not see IP headers. The
// ICRC covers it. It is solved from the ICRC, and accepted if it is plausible; package ipid says
// what is.

// asGuessed stands for an identification that the stack has seen, or guessed right.
const asGuessed = -1

// superframe is how many datagrams a host on sockets sends as one, at most. The kernel numbers them
// from 0.
const superframe = 64

// identify checks the ICRC of a packet whose identification is a guess. It returns the
// identification, or asGuessed if the guess was right.
func (e *Engine) identify(d *stack.Datagram, b []byte) (id int, right bool) {
	found, ok := wire.SolveID(d.Header, b)
	switch {
	case !ok:
		return 0, false
	case found == wire.ID(d.Header):
		return asGuessed, true
	case e.strictICRC:
		// The kernel may have put together what was sent singly, or cut the superframe of a peer in
		// two.
		return asGuessed, found < superframe
	case !e.ids.Accept(flowOf(d), found, e.now()):
		return 0, false
	}
	e.Counters.Identified.Add(1)
	return int(found), true
}

// receiveIdentified is receive for a packet whose identification was solved. If the packet was the
// next one of a reliable connection, the identification is the last one. Any other packet's is
// noted: of a QP of another type, a duplicate, or one behind a gap.
func (q *qp) receiveIdentified(port uint8, d *stack.Datagram, pkt *wire.Packet, id int) {
	expected, una := q.receiving.PSN(), q.sending.Una()
	q.receive(port, d, pkt)
	if q.reliable() && (q.receiving.PSN() != expected || q.sending.Una() != una) {
		q.e.ids.Passed(flowOf(d), uint16(id), q.e.now())
	} else {
		q.e.ids.Seen(flowOf(d), uint16(id), q.e.now())
	}
}

func flowOf(d *stack.Datagram) ipid.Flow {
	return ipid.Flow{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort}
}
