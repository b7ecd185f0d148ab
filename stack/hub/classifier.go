package hub

import "github.com/softrnic/softrnic/stack"

// Classifier parses RoCE packets for a hub, which does not know RoCE. It is implemented by package
// rdmatransport/classify. Only one goroutine at a time calls its methods. They neither keep nor
// modify the payload. The payload must not change during the call: the hub copies memory that
// another process can write to.
type Classifier interface {
	// Leased says that a process has leased these numbers. The classifier drops its state of an
	// earlier process with the same numbers.
	Leased(stack.Numbers)
	// Died says that the process with these numbers has ended. SendDue then ends its connections, for
	// up to 66 seconds if a peer does not answer. The numbers should be leased again only after that.
	// If there are no others, those of the longest dead come first.
	Died(stack.Numbers)
	// Classify returns the destination of a datagram. payload is the result of d.Next. The classifier
	// may record the connections that it sees. Classify is called for each segment, because a frame
	// may contain segments for different QPs: GRO joins datagrams by addresses and ports only. A hub
	// copies consecutive segments with the same Target together, as one superframe.
	Classify(payload []byte, d *stack.Datagram) Target
	// Verify reports whether the ICRC of a datagram to a QP is valid for d's header, including
	// the identification. payload is the result of d.Next. The receiving process then need not
	// check it.
	Verify(payload []byte, d *stack.Datagram) bool
	// Refuse answers a datagram for a service or a communication ID that no process has, according to
	// Classify. Like a host's connection manager, it rejects a request, or a message for an unknown
	// connection. It may send nothing. It never answers for a living process (see Leased), which may
	// be between two hubs.
	Refuse(payload []byte, d *stack.Datagram, send SendFunc)
	// Permits reports whether a process may send a datagram that names these numbers as its
	// own: the communication ID of a MAD, or the QPN of an unreliable datagram. (A packet of a
	// connection names none; see [stack.Datagram.SrcQPNs].)
	Permits(payload []byte, own stack.Numbers) bool
	// SendDue calls send for each packet that is due on behalf of dead processes: the DREQ of a
	// connection, retransmitted until it is answered. It returns the time until the next call,
	// in nanoseconds, or 0 if nothing is due before the next call of Classify, Refuse or Died.
	// now is the time of a monotonic clock, in nanoseconds.
	SendDue(now int64, send SendFunc) (again int64)
}

// SendFunc sends a datagram of n bytes from QP 1 of an address that the hub owns. It calls fill to
// write the payload, with the results of [stack.Sender.Datagram]. It does not call fill if the
// datagram cannot be sent. If the destination is one of the hub's own addresses, the datagram is
// classified like a received one.
type SendFunc func(to stack.PathAttr, n int, fill func(header, payload []byte))

// Target is the destination of a datagram. The zero Target means that the datagram is dropped.
type Target struct {
	Kind    TargetKind
	Number  uint32 // TargetQPN, TargetCommID
	Service uint64 // TargetService
}

// TargetKind says how the destination process is found.
type TargetKind uint8

// The kinds of targets.
const (
	TargetNone   TargetKind = iota
	TargetQPN               // the process with the QPN; without one the datagram is dropped
	TargetCommID            // the process with the communication ID; without one Refuse
	// The process that serves it at the destination address; without one Refuse.
	TargetService
	TargetGroup // the processes that have joined the destination group
)
