package iwarptransport

// The types of a QP, except for sender.

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

	tx sender
	rx receiver

	direct uint64 // messages moved directly
}

// slots returns the smallest power of two that is at least n.
func slots(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// receiver is the receive state of a QP.
type receiver struct {
	queues     [rdmap.Queues]ddp.Queue
	allowed    bool   // the peer may send FPDUs
	gotFPDU    bool   // the peer has sent an FPDU
	reported   bool   // a completion reports the error in ulpdu
	writeBytes uint64 // placed bytes of the current RDMA Write message
	// The length of the last RDMA Write message. It is reported with immediate data that follows.
	lastWrite uint64
	ulpdu     []byte // the current ULPDU
}
