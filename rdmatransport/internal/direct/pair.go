package direct

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// Pair copies data between the memory of two QPs that are both locked. If a function returns false,
// the request must be sent on the wire, which reports the error.
type Pair struct {
	From, To       verbs.QPHandle
	Source, Target *memory.Regions // of their devices
	SharedReceives bool            // receive requests of To come from an SRQ
}

// own returns the memory of a send request.
func (x *Pair) own(wr *verbs.PostedSend) memory.Message {
	return memory.Message{Regions: x.Source, PD: x.From.PD(), List: wr.SGList}
}

// recv returns the receive request for a message of which n bytes are at offset off, or nil. If the
// data cannot be read, no request is taken from an SRQ.
func (x *Pair) recv(wr *verbs.PostedSend, off, n uint64) *verbs.PostedRecv {
	if x.SharedReceives && !memory.Sound(wr, x.own(wr), off, n) {
		return nil
	}
	return x.To.Recv()
}

// Send places n bytes of a SEND, from offset off on, in the oldest receive request.
func (x *Pair) Send(wr *verbs.PostedSend, off, n uint64) bool {
	recv := x.recv(wr, off, n)
	return recv != nil && wr.Length() <= recv.Length() &&
		memory.Copy(memory.Message{Regions: x.Target, PD: x.To.RecvPD(), List: recv.SGList}, x.own(wr), wr, off, n)
}

// Write places n bytes of a WRITE, from offset off on, in to. If the immediate data is due, a
// receive request is needed.
func (x *Pair) Write(wr *verbs.PostedSend, to memory.Span, off, n uint64) bool {
	if wr.Opcode == verbs.RDMAWriteWithImm && off+n == wr.Length() && x.recv(wr, off, n) == nil {
		return false
	}
	return memory.Write(wr, x.own(wr), to, off)
}

// Read places bytes of a READ, from offset off on, in the request's own memory.
func (x *Pair) Read(wr *verbs.PostedSend, from memory.Span, off uint64) bool {
	return memory.Read(x.own(wr), from, off)
}

// Atomic executes an atomic.
func (x *Pair) Atomic(wr *verbs.PostedSend, word memory.Span) bool {
	return memory.Atomic(wr, x.own(wr), word)
}
