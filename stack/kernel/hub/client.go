package hub

import "log/slog"

// DefaultRing is the size of the ring that a client receives from, in bytes.
const DefaultRing = 4 << 20

// ClientConfig says how a process is a client of a hub. Directory and Start may be left out.
type ClientConfig struct {
	Directory string // "" for that of Directory
	// Start starts a hub in a process of its own; it need not wait for it. If it is nil, somebody else has to.
	Start func(directory string) error
	// Deliver gets what comes, while nothing else is received (see Client.Do). polled says that it is called by Poll.
	Deliver func(a *Arrival, polled bool)
	// Polled tells whether somebody calls Poll again and again: nothing is received by itself then.
	Polled func() bool
	// Changed is called after Client.Up has changed. lost says that the client's numbers are no longer its own, and that nothing
	// will ever come again.
	Changed func(lost bool)
	Log     *slog.Logger // nil: nothing is logged
}
