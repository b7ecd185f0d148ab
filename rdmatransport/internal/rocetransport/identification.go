package rocetransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/ipid"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// Receive path: the IPv4 identification of packets from a network stack that does not see IP
// headers. The ICRC covers it. It is computed from the ICRC, and accepted if it is plausible
// (package ipid).

// asGuessed is returned for an identification that the stack saw or guessed correctly.
const asGuessed = -1

// superframe is the largest number of datagrams that a host with sockets sends in one call. The
// kernel numbers them from 0.
const superframe = 64

// identify checks the ICRC of a packet whose identification the stack has guessed. It returns the
// identification, or asGuessed if the guess was right. rxeFlush: the ICRC is that of rxe's FLUSH.
func (e *Engine) identify(d *stack.Datagram, b []byte, rxeFlush bool) (id int, right bool) {
	solve := wire.SolveID
	if rxeFlush {
		solve = wire.SolveRxeFlushID
	}
	found, ok := solve(d.Header, b)
	switch {
	case !ok:
		return 0, false
	case found == wire.ID(d.Header):
		return asGuessed, true
	case e.strictICRC:
		// The kernel may have merged packets that were sent one by one, or split a peer's
		// superframe.
		return asGuessed, found < superframe
	case !e.ids.Accept(flowOf(d), found, e.now()):
		return 0, false
	}
	e.Counters.Identified.Add(1)
	return int(found), true
}

// receiveIdentified is like receive, for a packet whose identification was computed. If the packet
// is the next one of a reliable connection, the identification is the sender's latest. For other
// packets it is only recorded: those on QPs of other types, duplicates, and packets after a gap.
func (q *qp) receiveIdentified(port uint8, d *stack.Datagram, pkt *wire.Packet, id int) {
	expected, una := q.receiving.PSN(), q.sending.Una()
	q.receive(port, d, pkt)
	if q.reliable() && (q.receiving.PSN() != expected || q.sending.Una() != una) {
		q.e.ids.Advance(flowOf(d), uint16(id), q.e.now())
	} else {
		q.e.ids.Note(flowOf(d), uint16(id), q.e.now())
	}
}

func flowOf(d *stack.Datagram) ipid.Flow {
	return ipid.Flow{Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort}
}
