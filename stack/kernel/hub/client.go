package hub

import (
	"fmt"
	"log/slog"
	"syscall"
)

// DefaultRing is the size of the ring that a client receives from, in bytes.
const DefaultRing = 4 << 20

// ClientConfig says how a process is a client of a hub. Only Receiver and Changed must be given.
type ClientConfig struct {
	Directory string // "" for that of Directory
	// QPs is how many QPs the client is to have at a time, at most MaxQPs; 0 is DefaultQPs.
	QPs int
	// Start starts a hub in a process of its own; it need not wait for it. If it is nil, somebody else has to.
	Start func(directory string) error
	// Receiver makes a function that gets what comes through one ring: of the hub, or of another client. What comes through
	// others may be received at the same time. polled says that it is called by Poll.
	Receiver func() (deliver func(a *Arrival, polled bool))
	// Changed is called after Client.Up has changed. lost says that the client's numbers are no longer its own, and that nothing
	// will ever come again.
	Changed func(lost bool)
	Log     *slog.Logger // nil: nothing is logged
}

// DefaultQPs is how many QPs a client has by default, and MaxQPs how many at most. Twice as many numbers are leased, as QPs draw
// theirs at random.
const (
	DefaultQPs = 1 << (slotBits - 1)
	MaxQPs     = DefaultQPs << maxLeaseBits
)

func (c *ClientConfig) check() error {
	if c.QPs < 0 || c.QPs > MaxQPs {
		return fmt.Errorf("%d QPs: give 1 to %d, or 0 for the default: %w", c.QPs, MaxQPs, syscall.EINVAL)
	}
	return nil
}

// bits says how many slots the client asks for, as a power of two.
func (c *ClientConfig) bits() (bits uint8) {
	for DefaultQPs<<bits < c.QPs {
		bits++
	}
	return bits
}
