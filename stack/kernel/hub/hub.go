// Package hub has many processes share the machine's addresses for RoCE packets. A hub is a process that owns UDP port 4791 of
// these addresses; clients are the processes that send and receive. Linux only.
//
//	err := hub.Serve(ctx, hub.Config{Classifier: rdmatransport.NewClassifier()}) // the hub; or: softrnic hub
//	host, err := kernel.New(kernel.Shared())                                     // in each client
//
// A client leases a range of QP numbers and one of communication IDs, and names the services that it listens for. The hub puts
// each datagram into the memory of the client that it is for. What a client sends leaves from its own sockets. Two clients with a
// connection between QPs of theirs share memory, which the hub arranges, and its packets pass neither the hub nor the kernel.
//
// # Who can join
//
// A hub belongs to one user and one network namespace. It is found in a directory of mode 0700 (see [Directory]), whose owner is
// checked, and so are the users at both ends of a connection. A client's crash, or garbage from it, harms only that client.
//
// # When a hub ends
//
// One hub at a time has the lock in the directory. It keeps its leases in a file there, which its successor takes from it. A
// client whose hub is gone starts another if it can, shows it the secret that came with its lease, and gets the same numbers;
// meanwhile it receives nothing, as if a cable had been pulled.
package hub

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/stack"
)

// Config says how [Serve] serves. Only Classifier must be given.
type Config struct {
	Directory  string           // "" for that of Directory
	Classifier stack.Classifier // knows the packets
	// Addrs are addresses that the hub has even while no client asks for them, with a zone if they are link-local.
	Addrs []netip.Addr
	// Idle is how long the hub goes on without clients; 0 is for ever.
	Idle time.Duration
	// Quarantine is for how long numbers of a client that has gone are not leased again if there are others; 0 is two minutes.
	Quarantine time.Duration
	// Reclaim is how long the clients of a hub that was killed have to come to this one, its successor; 0 is ten seconds. Those
	// who do not are dead, unless their processes can be seen to be alive: those have two minutes.
	Reclaim time.Duration
	Log     *slog.Logger // nil: nothing is logged
	// Counters is where the hub counts; nil: nobody is told.
	Counters *Counters
}

// Counters are what a hub counts.
type Counters struct {
	Clients  atomic.Int64  // that there are
	Received atomic.Uint64 // datagrams, of which several that came as one (GRO) count once
	Bytes    atomic.Uint64 // of their payload
	Dropped  atomic.Uint64 // datagrams, and records of clients, that nobody got
}

const (
	defaultQuarantine = 2 * time.Minute
	defaultReclaim    = 10 * time.Second
)

// ErrRunning is what the error of Serve wraps if there is a hub already.
var ErrRunning = errors.New("there is a hub already")

// Directory is where the hub of this user and this network namespace is found: hub-N, with the number of the namespace, in
// $XDG_RUNTIME_DIR/softrnic, or where that is not set, in softrnic-UID in the directory for temporary files.
func Directory() string { return filepath.Join(userdir.Default(), "hub-"+namespace()) }

// What is in the directory.
const (
	lockName   = "lock"   // locked by the hub, whose process ID is in it
	startName  = "start"  // locked by a client that starts a hub
	socketName = "socket" // where the hub listens
	leasesName = "leases" // what it has leased
)

// QPNs are leased in slots of 2^slotBits, and a client has 2^n of them in a row, from a multiple of 2^n on; communication IDs in
// slots of 2^commBits, of which each has one. QPNs 0, 1 and 0xffffff and communication ID 0 are of no client.
const (
	slotBits     = 16
	commBits     = 20
	qpnSlots     = 1 << (24 - slotBits) // the first and the last are not leased
	commSlots    = 1 << (32 - commBits) // the first is not leased
	maxLeaseBits = 5                    // n at most
)

// span is the slots of a client: of QPNs, the first and how many as a power of two, and of communication IDs.
type span struct {
	qpnSlot, commSlot uint32
	bits              uint8
}

// isValid tells whether a client can have these slots.
func (s span) isValid() bool {
	n := uint32(1) << min(s.bits, maxLeaseBits)
	qpns := s.bits <= maxLeaseBits && s.qpnSlot%n == 0 && s.qpnSlot > 0 && s.qpnSlot < qpnSlots-n
	return qpns && s.commSlot > 0 && s.commSlot < commSlots
}

// overlaps tells whether two have a slot in common.
func (s span) overlaps(o span) bool {
	return s.commSlot == o.commSlot || s.qpnSlot < o.qpnSlot+1<<o.bits && o.qpnSlot < s.qpnSlot+1<<s.bits
}

func (s span) numbers() stack.Numbers {
	return stack.Numbers{
		QPNs:    qpns(s.qpnSlot, s.bits),
		CommIDs: stack.Range{Base: s.commSlot << commBits, Mask: 1<<commBits - 1},
	}
}

func qpns(slot uint32, bits uint8) stack.Range {
	return stack.Range{Base: slot << slotBits, Mask: 1<<(slotBits+bits) - 1}
}
