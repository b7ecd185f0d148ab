package iwarptransport

// A QP, and the two halves of its state, for sending and receiving. The parts of the send state are
// in files of their own.

import (
	"math/bits"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/direct"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// qp is the provider's part of a reliable connection over iWARP. The QP's lock protects it.
type qp struct {
	e     *Engine
	h     verbs.QPHandle
	num   uint32
	depth uint32 // of the send queue
	srq   bool   // receive requests come from an SRQ

	mover direct.Mover

	conn *conn // nil before RTS and after the end of the stream

	sending   sendState
	receiving receiveState

	direct uint64 // messages moved directly
}

// slots returns the smallest power of two that is at least n.
func slots(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// sendState is the send state of a QP. Each field of its parts is written only in the file that
// declares it.
type sendState struct {
	cursor    cursor
	lifecycle lifecycle
	reads     reads
	responses responses
	numbers   messageNumbers
	segment   segment
	output    output
}

// init allocates the state for up to depth posted requests.
func (s *sendState) init(depth int) { s.cursor.init(slots(depth)) }

// reset clears the state, because the QP has no stream.
func (s *sendState) reset() {
	s.lifecycle.reset()
	s.cursor.reset()
	s.reads.reset()
	s.responses.reset(0)
	s.numbers.reset()
	s.output.reset()
}

// begin starts sending on a stream.
func (s *sendState) begin(c *conn) {
	s.reset()
	s.responses.reset(c.ird)
	s.lifecycle.begin(c.initiator, c.rtr)
}

// receiveState is the receive state of a QP.
type receiveState struct {
	queues     [rdmap.Queues]ddp.Queue
	allowed    bool   // the peer may send FPDUs
	gotFPDU    bool   // the peer has sent an FPDU
	rtrDue     bool   // the first FPDU of an initiator has not come; messages may have moved directly
	inSetUp    bool   // the FPDU being placed is that one, and may be the ready-to-receive message
	uncounted  bool   // the last WRITE was not one of the application, unless immediate data follows
	reported   bool   // a completion reports the error in ulpdu
	writeBytes uint64 // placed bytes of the current RDMA Write message
	// The length of the last RDMA Write message. It is reported with immediate data that follows.
	lastWrite uint64
	ulpdu     []byte // the current ULPDU
}
