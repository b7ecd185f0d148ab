package link

// State is the state of a link's medium, as a NIC reports it for its cable.
type State uint8

const (
	Up        State = iota // frames pass
	NoCarrier              // nothing is connected at the other end
	Disabled               // the interface is administratively down
	Removed                // the interface was deleted; this state is final
)

var states = [...]string{"up", "no carrier", "disabled", "removed"}

func (s State) String() string { return states[min(int(s), len(states)-1)] }

// Carrier is a link whose medium can lose and regain its carrier, or change its MTU. A wrapper
// reports the state of its inner link.
type Carrier interface {
	// State is the present state. While it is not Up, written frames are refused or lost.
	State() State
	// Watch sets the function to call after State or MTU has changed. Calls do not overlap. Nil
	// ends the calls.
	Watch(f func())
}

// StateOf returns the state of any link. A link that is not a Carrier is Up.
func StateOf(l Link) State {
	if c, ok := l.(Carrier); ok {
		return c.State()
	}
	return Up
}

// Watch sets the function to call after the state or the MTU of a link has changed, if the link is
// a Carrier.
func Watch(l Link, f func()) {
	if c, ok := l.(Carrier); ok {
		c.Watch(f)
	}
}
