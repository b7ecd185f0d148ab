package direct

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// Receiver is the side of a message that consumes a receive request. It is locked.
type Receiver struct {
	QP      verbs.QPHandle
	Regions *memory.Regions // of its device
	SRQ     bool            // receive requests come from an SRQ
}

// Recv returns the receive request for n bytes at offset off of the message of wr, whose memory is
// own, or nil. If the data cannot be read, no request is taken from an SRQ.
func (r *Receiver) Recv(wr *verbs.PostedSend, own memory.Message, off, n uint64) *verbs.PostedRecv {
	if r.SRQ && !memory.Sound(wr, own, off, n) {
		return nil
	}
	return r.QP.Recv()
}

// Send places n bytes of a SEND, from offset off on, in the oldest receive request. If it returns
// false, the request must be sent on the wire, which reports the error.
func (r *Receiver) Send(wr *verbs.PostedSend, own memory.Message, off, n uint64) bool {
	recv := r.Recv(wr, own, off, n)
	return recv != nil && wr.Length() <= recv.Length() &&
		memory.Copy(memory.Message{Regions: r.Regions, PD: r.QP.RecvPD(), List: recv.SGList}, own, wr, off, n)
}
