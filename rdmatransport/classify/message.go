package classify

import (
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// message is a MAD of connection management.
type message struct {
	tid     uint64
	content mad.Message
	// local and remote are the communication IDs, or the request ID of SIDR, of sender and
	// receiver; 0 if there is none.
	local, remote uint32
}

// parse parses a packet to QP 1. ok is false if it is no unicast message.
func parse(payload []byte, d *stack.Datagram) (m message, ok bool) {
	var pkt wire.Packet
	if unicast := !d.V1 && !d.Dst.IsMulticast(); !unicast || pkt.Parse(payload) != nil || !betweenQP1s(&pkt) {
		return m, false
	}
	h, data, err := mad.Parse(pkt.Payload)
	if err != nil {
		return m, false
	}
	content := mad.New(h.Attr)
	if content == nil {
		return m, false
	}
	mad.Decode(data, content)
	m = message{tid: h.TID, content: content}
	m.local, m.remote = content.IDs()
	return m, true
}

// betweenQP1s reports whether a packet is from QP 1 of another host, in the default partition (IBTA
// Vol 1 §13.5.2).
func betweenQP1s(p *wire.Packet) bool {
	const anyMember = 0x7fff // the other bit distinguishes full from limited members
	inPartition := p.PKey&anyMember == defaultPKey&anyMember
	fromQP1 := p.Opcode == wire.UDSendOnly && p.DETH.SrcQP == mad.QPN && p.DETH.QKey == mad.QKey
	return inPartition && fromQP1
}

// request identifies a REQ: the addresses of both sides, and the sender's communication ID.
type request struct {
	responder, requester netip.Addr
	id                   uint32
}

// request returns the key of the REQ that belongs to the message.
func (m *message) request(d *stack.Datagram) request { return request{d.Dst, d.Src, m.local} }
