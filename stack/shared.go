package stack

import "net/netip"

// Shared is a [DatagramPort] whose addresses other processes have as well: a hub owns UDP port 4791 and hands each datagram
// to the process that it is for, by the numbers in its BTH and MAD (IBTA Vol 1 §9.2, §12.6). A transport that opens such a
// port draws its numbers from Numbers, and names its services with Serve.
type Shared interface {
	// Numbers are those that no other process of the hub has, until the port is closed. They never change.
	Numbers() Numbers
	// Serve asks for the connection requests (REQ, SIDR_REQ) to services. The error wraps EADDRINUSE if another process has
	// one of them at one of the addresses; what the same process has is no obstacle.
	//
	// Serve waits for the hub, and may be called while the hub is being replaced by another: it is then to succeed or fail
	// there. The services of a process are the successor's too.
	Serve(Service) error
	// EndServe undoes one Serve of the same value. Requests to a service that nobody else serves still come to this process,
	// until another serves it: only this one knows which requests are repeated, and it refuses the others.
	EndServe(Service)
}

// Service is the services whose ID, masked, is that of ID masked, at an address, or with the zero Addr at all addresses of the
// port.
type Service struct {
	Addr     netip.Addr
	ID, Mask uint64
}

// Numbers are what a process leases from a hub.
type Numbers struct {
	QPNs    Range // 24 bits
	CommIDs Range // 32 bits: local communication IDs, and the request IDs of SIDR
}

// Range is the numbers n with n &^ Mask == Base. Mask is of the form 2^k-1. The zero Range has the number 0 only, which is
// neither a QPN nor a communication ID that is leased, and stands for none where that makes sense.
type Range struct{ Base, Mask uint32 }

// Contains tells whether n is in the range.
func (r Range) Contains(n uint32) bool { return n&^r.Mask == r.Base }

// Classifier knows the packets of RoCE for a hub, which does not. Its methods are called by one goroutine at a time. None
// keeps or changes the payload that it is given, nor may the payload change meanwhile: what another process can write to is
// copied first.
type Classifier interface {
	// Leased says that a process has these numbers from now on. What is known of an earlier process with them is forgotten.
	Leased(Numbers)
	// Died says that the process with these numbers is gone. What Speak sends from then on concerns its connections. It takes
	// 66 seconds if a peer does not answer: the numbers should be leased again only then, and when others have run out,
	// those that are dead for longest.
	Died(Numbers)
	// Classify says whom a datagram is for. payload is what d.Next returned last. It may learn from what passes. It is called
	// for each segment of an arrival, as those of different QPs can be in one: a system that joins datagrams (GRO) looks at
	// addresses and ports only. A hub copies consecutive segments with the same Target at once, as one superframe.
	Classify(payload []byte, d *Datagram) Target
	// Verify tells whether the ICRC of a datagram to a QP is right for the header that d has, identification and all. payload is
	// what d.Next returned last. The process that gets the datagram need not look then.
	Verify(payload []byte, d *Datagram) bool
	// Refuse answers for nobody: Classify has just said that the datagram is for a service or a communication ID that no
	// process has. A request is rejected, and so is what comes to a connection that nobody knows, as the connection manager
	// of a host does. It may send nothing; it never answers for a living process (see Leased), which may be between two hubs.
	Refuse(payload []byte, d *Datagram, send SendFunc)
	// Permits tells whether a process may send a datagram in which it names numbers as its own: the communication ID of a MAD,
	// the QPN of an unreliable datagram. (A packet of a connection names none; see Datagram.SrcQPNs.)
	Permits(payload []byte, own Numbers) bool
	// Speak calls send for each packet that is due on behalf of processes that died: the DREQ of a connection, again until
	// it is answered. It returns after how many nanoseconds it is to be called again; 0 if there is nothing left to say until
	// the next call of Classify, Refuse or Died. now is in nanoseconds of a monotonic clock.
	Speak(now int64, send SendFunc) (again int64)
}

// SendFunc sends a datagram of n bytes from QP 1 of an address that the hub owns. It calls fill to write the payload, with
// what [Sender.Datagram] returns, or does not call it if the datagram cannot be sent. The destination may be one of the
// hub's own addresses: then the datagram is classified as one that arrives.
type SendFunc func(to PathAttr, n int, fill func(header, payload []byte))

// Target is whom a datagram is for. The zero Target is nobody: the datagram is dropped.
type Target struct {
	Kind    TargetKind
	Number  uint32 // TargetQPN, TargetCommID
	Service uint64 // TargetService
}

// TargetKind says by what the process is found.
type TargetKind uint8

// The kinds of targets.
const (
	TargetNone    TargetKind = iota
	TargetQPN                // the process whose QPN it is; if there is none, the datagram is dropped
	TargetCommID             // the process whose communication ID it is, else Refuse
	TargetService            // the process that serves it at the destination address, else Refuse
	TargetGroup              // the processes that have joined the group that is the destination address
)
