package iwarptransport

// Set-up, peer-to-peer mode: the message that allows the responder to send.

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// sendRTR sends the ready-to-receive message: a zero-length WRITE or READ, or an empty FPDU. The
// responder sends nothing before it has arrived (RFC 6581 §8).
func (q *qp) sendRTR() bool {
	s := &q.sending
	switch s.lifecycle.rtr {
	case rtrWrite:
		s.segment.tagged(&ddp.Tagged{Last: true, RsvdULP: rdmap.Write.Control()})
	case rtrRead:
		s.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: rdmap.QueueReadRequest, MSN: s.numbers.next(rdmap.QueueReadRequest),
		})
		h := rdmap.ReadRequestHeader{SinkSTag: q.conn.sink}
		h.Encode(s.segment.rdmapHeader(rdmap.ReadRequestLen))
	case rtrEmpty:
		s.segment.empty()
	}
	if !q.send() {
		return false
	}
	if s.lifecycle.rtr == rtrRead {
		s.numbers.advance(rdmap.QueueReadRequest)
		s.reads.rtrSent()
	}
	s.lifecycle.on(onRTRSent)
	return true
}
