package fault

import (
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Rule is one thing that fails. [Parse] makes rules.
type Rule struct {
	text string
	kind kind
	sel  selectors

	call   string // of kind onCall: the name, perhaps with a state
	errno  syscall.Errno
	status verbs.WCStatus // of kind onCompletion; 0 if the completion is only late
	event  verbs.AsyncEventType
	cm     rdmacm.EventType
	time   time.Duration // how late or how long
	down   bool          // of kind onPort
	prefix netip.Prefix  // of kind onAddr; with removes, only its address
	remove bool
	mtu    int

	// Which of the matching calls, requests or events are hit, counted from 1.
	first, last uint64
	share       float64 // of them, at random; 0: all
}

// String returns the rule as it was written.
func (r Rule) String() string { return r.text }

// kind is what a rule makes fail.
type kind uint8

const (
	onCall kind = iota
	onCompletion
	onEvent
	onCQ
	onCM
	onPort
	onAddr
	onMTU
	onDevice
	onMR
	onNone // ends the rules before it
)

// acts reports whether a rule of the kind does something once, rather than wait for what it makes
// fail.
func (r *Rule) acts() bool {
	switch r.kind {
	case onCall, onCompletion, onNone:
		return false
	case onCM:
		return r.cm == rdmacm.AddrChange
	}
	return true
}

// selectors restrict a rule.
type selectors struct {
	qp     uint32 // 0: any
	opcode string // "": any
	port   uint8  // 0: 1
	lkey   uint32 // 0: any
	reason int
	seed   uint64
	// When an action happens: after a time, or with the nth send request that is posted. Both 0: at
	// once.
	after time.Duration
	nth   uint64
	// How late a completion or event is that also fails.
	late  time.Duration
	lasts time.Duration // for how long a port is down; 0: until another rule
}

// hits reports whether the nth matching call is hit, apart from chance.
func (r *Rule) hits(n uint64) bool { return n >= r.first && n <= r.last }

const forever = math.MaxUint64
