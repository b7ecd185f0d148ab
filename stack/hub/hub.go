// Package hub lets many processes share the machine's addresses for RoCE packets. A hub is a
// process that owns UDP port 4791 of these addresses. Its clients are the processes that send and
// receive. Linux only.
//
//	err := hub.Serve(ctx, hub.Config{Classifier: classify.New()}) // or: softrnic hub
//	host, err := kernel.New(&kernel.Config{Sharing: &kernel.Sharing{}})         // in each client
//
// A client leases a range of QP numbers and one of communication IDs, and registers the services
// that it listens for. The hub opens a socket for it at each of its addresses. The kernel selects
// the socket by the destination QPN, so that datagrams from other machines bypass the hub. The hub
// copies MADs, and other datagrams that the kernel does not steer, into memory of the destination
// client. A client sends from its own sockets. Two clients with connected QPs share memory that the
// hub arranges, and their packets bypass the hub and the kernel.
//
// # Access
//
// A hub belongs to one user and one network namespace. It is in a directory of mode 0700 (see
// [Directory]), whose owner is checked. The users at both ends of a connection are checked too. If
// a client crashes or sends garbage, only that client suffers.
//
// A hub of the machine (Config.System) serves all users. It is in [SystemDirectory]. The kernel
// names the user of each client (SO_PEERCRED). Users share addresses and nothing else: no memory,
// no sockets and no numbers. Each user has a share of the hub (see user_linux.go).
//
// # The end of a hub
//
// One hub at a time holds the lock in the directory. It keeps its leases in a file there, for its
// successor. A client that has lost its hub starts another if it can. It presents the secret of its
// lease, and gets the same numbers again. Meanwhile it receives nothing, as if its cable were
// unplugged.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
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

// Config configures [Serve]. Only Classifier is required.
type Config struct {
	Directory  string     // "" means Directory
	Classifier Classifier // parses the packets
	// Addrs are addresses that the hub owns even if no client requests them, with a zone if
	// they are link-local.
	Addrs []netip.Addr
	// Idle is the time without clients after which the hub ends; 0 means never.
	Idle time.Duration
	// Quarantine is the time for which the numbers of a departed client are not leased again, unless
	// no others are left; 0 means two minutes.
	Quarantine time.Duration
	// Reclaim is the time that clients of a killed hub have to connect to its successor; 0 means ten
	// seconds. After that, a missing client is considered dead. If its process is known to be alive,
	// it has two minutes.
	Reclaim time.Duration
	// Relay makes the hub receive and pass on all datagrams, as where the kernel cannot steer them.
	Relay bool
	// System makes this the hub of the machine, which serves all users. It passes on all datagrams. ""
	// for Directory then means SystemDirectory.
	System bool
	Log    *slog.Logger // nil: no log
	// Counters are updated by the hub, if not nil.
	Counters *Counters
}

// Counters are the counters of a hub. Datagrams that the kernel passes to clients are not counted.
type Counters struct {
	Clients  atomic.Int64  // present clients
	Received atomic.Uint64 // datagrams; those that arrived as one (GRO) count once
	Bytes    atomic.Uint64 // payload bytes
	Dropped  atomic.Uint64 // datagrams, and records of clients, without a destination
	Refused  atomic.Uint64 // connections and requests, as the client, its user, or all have as much as they may
}

const (
	defaultQuarantine = 2 * time.Minute
	defaultReclaim    = 10 * time.Second
)

// ErrRunning is wrapped by Serve's error if a hub is running already.
var ErrRunning = errors.New("a hub is running already")

// Directory returns the directory of the hub of this user and this network namespace: hub-N, with
// the number of the namespace, in $XDG_RUNTIME_DIR/softrnic. If that variable is not set, it is in
// /run/softrnic-0 for root, and for others in softrnic-UID in the directory for temporary files.
func Directory() string { return filepath.Join(userdir.Default(), "hub-"+namespace()) }

// systemRuntime has the directories of services. It is a variable for tests.
var systemRuntime = "/run"

// SystemDirectory returns the directory of the hub of the machine, in this network namespace:
// hub-N, with the number of the namespace, in /run/softrnic.
func SystemDirectory() string { return filepath.Join(systemRuntime, "softrnic", "hub-"+namespace()) }

// find returns the directory of the hub that a client uses: of the user's own if it runs, or of the
// hub of the machine if that runs, or else of the user's own.
func find() string {
	own := Directory()
	if system := SystemDirectory(); !Running(own) && Running(system) {
		return system
	}
	return own
}

// Files in the directory.
const (
	lockName   = "lock"   // locked by the hub; contains its process ID
	startName  = "start"  // locked by a client that starts a hub
	socketName = "socket" // the hub's listening socket
	leasesName = "leases" // the leases
)

// QPNs are leased in slots of 2^slotBits. A client has 2^n consecutive slots, beginning at a
// multiple of 2^n. Communication IDs are leased in slots of 2^commBits, one for each client. QPNs
// 0, 1 and 0xffffff and communication ID 0 are never leased.
const (
	slotBits     = 16
	commBits     = 20
	qpnSlots     = 1 << (24 - slotBits) // the first and the last are not leased
	commSlots    = 1 << (32 - commBits) // the first is not leased
	maxLeaseBits = 5                    // largest n
)

// span is the range of a client's numbers: the first QPN slot, the number of QPN slots as a power
// of two, and the communication ID slot.
type span struct {
	qpnSlot, commSlot uint32
	bits              uint8
}

// isValid reports whether a client can have these slots.
func (s span) isValid() bool {
	n := uint32(1) << min(s.bits, maxLeaseBits)
	qpns := s.bits <= maxLeaseBits && s.qpnSlot%n == 0 && s.qpnSlot > 0 && s.qpnSlot < qpnSlots-n
	return qpns && s.commSlot > 0 && s.commSlot < commSlots
}

// overlaps reports whether two spans have a slot in common.
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
