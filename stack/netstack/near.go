package netstack

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/stack"
)

// near knows the interfaces of all hosts of this process whose links share a medium.
var near struct {
	changes atomic.Uint64 // counts up when an interface or an address comes or goes

	mu   sync.Mutex
	nics map[any][]*Interface // by link.Shared's medium
}

// medium is what the interface's link shares with others, nil if nothing.
func (n *Interface) medium() any {
	if n.shared == nil {
		return nil
	}
	return n.shared.Medium()
}

// enter makes the interface known to the others on its medium.
func (n *Interface) enter() {
	if m := n.medium(); m != nil {
		near.mu.Lock()
		if near.nics == nil {
			near.nics = map[any][]*Interface{}
		}
		// A copy: way.find looks at the slices without the lock.
		near.nics[m] = append(near.nics[m][:len(near.nics[m]):len(near.nics[m])], n)
		near.mu.Unlock()
	}
	near.changes.Add(1)
}

// leave undoes enter, for good.
func (n *Interface) leave() {
	n.closed.Store(true)
	if n.carrier != nil {
		n.carrier.Watch(nil)
	}
	near.mu.Lock()
	for m, nics := range near.nics { // a link that is closed does not tell its medium any more
		var others []*Interface
		for _, o := range nics {
			if o != n {
				others = append(others, o)
			}
		}
		if len(others) == 0 {
			delete(near.nics, m)
		} else if len(others) < len(nics) {
			near.nics[m] = others
		}
	}
	near.mu.Unlock()
	near.changes.Add(1)
}

// way finds out whether packets from an interface to an address stay within this process.
type way struct {
	from *Interface // nil: nothing is known
	to   netip.Addr
	end  atomic.Pointer[wayEnd] // what find found
}

type wayEnd struct {
	nic    *Interface // nil: elsewhere
	own    bool       // of the same host
	change uint64     // near.changes then
}

// Near implements Path and Stream.
func (w *way) LocalNIC() stack.NIC {
	e := w.end.Load()
	if e == nil || e.change != near.changes.Load() {
		e = w.find()
	}
	n := e.nic
	if n == nil || n.closed.Load() || !e.own && (n.shared.Medium() == nil || w.from.shared.Medium() == nil) {
		return nil
	}
	return n
}

func (w *way) find() *wayEnd {
	e := &wayEnd{change: near.changes.Load()}
	if w.from != nil {
		if e.nic = w.from.host.owner(w.to); e.nic != nil {
			e.own = true
		} else if m := w.from.medium(); m != nil {
			e.nic = w.from.neighbourOn(m, w.to)
		}
		if n := e.nic; n != nil && !e.own && (n.link.sniffer.Load() != nil || w.from.link.sniffer.Load() != nil) {
			e.nic = nil // somebody watches the packets
		}
	}
	w.end.Store(e)
	return e
}

// neighbourOn is the one interface on medium m that has address a, if a is reached without a gateway.
func (n *Interface) neighbourOn(m any, a netip.Addr) (found *Interface) {
	n.host.mu.Lock()
	direct := n.inNetwork(a).IsValid()
	n.host.mu.Unlock()
	if !direct {
		return nil
	}
	near.mu.Lock()
	nics := near.nics[m]
	near.mu.Unlock()
	for _, o := range nics {
		if o.has(a) {
			if found != nil {
				return nil // two interfaces have the address: ARP decides
			}
			found = o
		}
	}
	return found
}
