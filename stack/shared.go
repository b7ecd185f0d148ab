package stack

// Shared is a [DatagramPort] whose addresses other processes have as well: a hub owns UDP port 4791 and hands each datagram
// to the process that it is for, by the numbers in its BTH and MAD (IBTA Vol 1 §9.2, §12.6). A transport that opens such a
// port draws its numbers from Numbers, and names its services with Serve.
type Shared interface {
	// Numbers are those that no other process of the hub has, until the port is closed.
	Numbers() Numbers
	// Serve asks for the connection requests (REQ, SIDR_REQ) to the services whose ID, masked, is id. The error wraps
	// EADDRINUSE if another process has one of them.
	Serve(id, mask uint64) error
	// EndServe undoes one Serve.
	EndServe(id, mask uint64)
}

// Numbers are what a process leases from a hub.
type Numbers struct {
	QPNs    Range // 24 bits
	CommIDs Range // 32 bits: local communication IDs, and the request IDs of SIDR
}

// Range is the numbers n with n &^ Mask == Base. Mask is of the form 2^k-1.
type Range struct{ Base, Mask uint32 }

// Contains tells whether n is in the range.
func (r Range) Contains(n uint32) bool { return n&^r.Mask == r.Base }

// Classifier knows the packets of RoCE for a hub, which does not. Its methods are called by one goroutine at a time.
type Classifier interface {
	// Classify says which process of the hub datagram d is for. It may learn from what passes.
	Classify(payload []byte, d *Datagram) Target
	// Died says that the process with these numbers is gone. What Speak sends from then on concerns its
	// connections.
	Died(Numbers)
	// Speak calls send for each packet that is due on behalf of processes that died: the DREQ of a connection, again until
	// it is answered, and the DREP to a peer's. It returns after how many nanoseconds it is to be called again; 0 if there
	// is nothing left to say.
	Speak(now int64, send func(Ends, []byte)) (again int64)
}

// Target is whom a datagram is for. The zero Target is nobody.
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
	TargetQPN                // the process whose QPN it is
	TargetCommID             // the process whose communication ID it is
	TargetService            // the process that serves it
)
