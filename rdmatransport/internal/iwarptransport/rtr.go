package iwarptransport

// Set-up, peer-to-peer mode: the message that allows the responder to send.

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// sendRTR sends the ready-to-receive message: a zero-length WRITE or READ, or an empty FPDU. The
// responder sends nothing before it has arrived (RFC 6581 §8).
func (q *qp) sendRTR() bool {
	t := &q.tx
	switch t.lifecycle.rtr {
	case rtrWrite:
		t.segment.tagged(&ddp.Tagged{Last: true, RsvdULP: rdmap.Write.Control()})
	case rtrRead:
		t.segment.untagged(&ddp.Untagged{
			Last: true, RsvdULP: rdmap.ReadRequest.Control(), QN: rdmap.QueueReadRequest, MSN: t.numbers.next(rdmap.QueueReadRequest),
		})
		h := rdmap.ReadRequestHeader{SinkSTag: q.conn.sink}
		h.Encode(t.segment.rdmapHeader(rdmap.ReadRequestLen))
	case rtrEmpty:
		t.segment.empty()
	}
	if !q.send() {
		return false
	}
	if t.lifecycle.rtr == rtrRead {
		t.numbers.advance(rdmap.QueueReadRequest)
		t.reads.rtrSent()
	}
	t.lifecycle.on(onRTRSent)
	return true
}
