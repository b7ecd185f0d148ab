package link

// State is what a NIC says of its cable.
type State uint8

const (
	Up        State = iota // frames pass
	NoCarrier              // nothing is at the other end
	Disabled               // an administrator has switched the interface off
	Removed                // the interface is no more: no other state follows
)

var states = [...]string{"up", "no carrier", "disabled", "removed"}

func (s State) String() string { return states[min(int(s), len(states)-1)] }

// Carrier is a link whose medium may come and go, and change its MTU. A wrapper passes on what the link in it says.
type Carrier interface {
	// State is the present state; frames that are written while it is not Up are refused or lost.
	State() State
	// Watch has f called after State or MTU has changed, one call after the other; nil ends that.
	Watch(f func())
}

// StateOf is the state of any link.
func StateOf(l Link) State {
	if c, ok := l.(Carrier); ok {
		return c.State()
	}
	return Up
}

// Watch has f called after the state or the MTU of a link has changed, if it tells.
func Watch(l Link, f func()) {
	if c, ok := l.(Carrier); ok {
		c.Watch(f)
	}
}
