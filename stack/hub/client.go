package hub

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
)

// defaultRing is the size of the ring that a client receives from, in bytes.
const defaultRing = 4 << 20

// ClientConfig configures a client of a hub. Only Receiver and Changed are required.
type ClientConfig struct {
	// Directory is that of the hub. "" means that of the user's own hub if it runs, or of the hub
	// of the machine if that runs, or else of the user's own.
	Directory string
	// QPs is the largest number of QPs that the client will have at a time, at most 2^20; 0
	// means 2^15.
	QPs int
	// Start starts a hub process, and need not wait for it. If it is nil, a hub must be started by
	// other means, as the hub of the machine always is.
	Start func(directory string) error
	// Receiver creates a function that receives from one ring: the hub's or another client's.
	// Functions for different rings may run at the same time. polled says that the function is called
	// by Poll.
	Receiver func() (deliver func(a *Arrival, polled bool))
	// Socket is called with a socket that receives datagrams for the client's QPNs at an address,
	// from other machines; those that arrive for other QPNs must be dropped. The callee closes f
	// at once or after DropAddr, and may not call the client. If Socket is nil or returns an
	// error, these datagrams come through the hub.
	Socket func(a netip.Addr, f *os.File) error
	// DrainSockets receives what has arrived at these sockets. It is called before Receiver's
	// function gets something from the hub, so that a disconnect does not overtake the last
	// acknowledgement.
	DrainSockets func()
	// SocketsEnd is called when the hub is gone: all of its sockets must be closed.
	SocketsEnd func()
	// Changed is called after the result of Client.Up has changed. lost says that the client has lost
	// its numbers and will never receive again.
	Changed func(lost bool)
	Log     *slog.Logger // nil: no log
}

// defaultQPs and maxQPs are the default and the largest number of QPs of a client. Twice as many
// numbers are leased, because QPs choose their numbers at random.
const (
	defaultQPs = 1 << (slotBits - 1)
	maxQPs     = defaultQPs << maxLeaseBits
)

func (c *ClientConfig) check() error {
	if c.QPs < 0 || c.QPs > maxQPs {
		return fmt.Errorf("%d QPs: must be 1 to %d, or 0 for the default: %w", c.QPs, maxQPs, syscall.EINVAL)
	}
	return nil
}

// bits returns the number of slots that the client requests, as a power of two.
func (c *ClientConfig) bits() (bits uint8) {
	for defaultQPs<<bits < c.QPs {
		bits++
	}
	return bits
}
