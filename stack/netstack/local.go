package netstack

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/stack"
)

// registry has the interfaces of all hosts of this process whose links share a medium.
var registry struct {
	changes atomic.Uint64 // incremented when an interface or an address is added or removed

	mu   sync.Mutex
	nics map[any][]*Interface // by link.Shared's medium
}

// medium returns the medium that the interface's link shares with others, or nil.
func (n *Interface) medium() any {
	if n.shared == nil {
		return nil
	}
	return n.shared.Medium()
}

// register makes the interface known to others on its medium.
func (n *Interface) register() {
	if m := n.medium(); m != nil {
		registry.mu.Lock()
		if registry.nics == nil {
			registry.nics = map[any][]*Interface{}
		}
		// This makes a copy, because localRoute.find reads the slices without the lock.
		registry.nics[m] = append(registry.nics[m][:len(registry.nics[m]):len(registry.nics[m])], n)
		registry.mu.Unlock()
	}
	registry.changes.Add(1)
}

// unregister undoes register, permanently.
func (n *Interface) unregister() {
	n.closed.Store(true)
	if n.carrier != nil {
		n.carrier.Watch(nil)
	}
	registry.mu.Lock()
	for m, nics := range registry.nics { // a closed link no longer returns its medium
		var others []*Interface
		for _, o := range nics {
			if o != n {
				others = append(others, o)
			}
		}
		if len(others) == 0 {
			delete(registry.nics, m)
		} else if len(others) < len(nics) {
			registry.nics[m] = others
		}
	}
	registry.mu.Unlock()
	registry.changes.Add(1)
}

// localRoute finds out whether packets from an interface to an address stay within this process.
type localRoute struct {
	from *Interface // nil: unknown
	to   netip.Addr
	end  atomic.Pointer[localEnd] // result of find
}

type localEnd struct {
	nic    *Interface // nil: not in this process
	own    bool       // of the same host
	change uint64     // the value of registry.changes then
}

// LocalNIC implements Path and Stream.
func (w *localRoute) LocalNIC() stack.NIC {
	e := w.end.Load()
	if e == nil || e.change != registry.changes.Load() {
		e = w.find()
	}
	n := e.nic
	if n == nil || n.closed.Load() || !e.own && (n.shared.Medium() == nil || w.from.shared.Medium() == nil) {
		return nil
	}
	return n
}

func (w *localRoute) find() *localEnd {
	e := &localEnd{change: registry.changes.Load()}
	if w.from != nil {
		if e.nic = w.from.host.owner(w.to); e.nic != nil {
			e.own = true
		} else if m := w.from.medium(); m != nil {
			e.nic = w.from.neighbourOn(m, w.to)
		}
		if n := e.nic; n != nil && !e.own && (n.link.sniffer.Load() != nil || w.from.link.sniffer.Load() != nil) {
			e.nic = nil // the packets are being sniffed
		}
	}
	w.end.Store(e)
	return e
}

// neighbourOn returns the only interface on medium m that has address a, if a is reached without a
// gateway.
func (n *Interface) neighbourOn(m any, a netip.Addr) (found *Interface) {
	n.host.mu.Lock()
	direct := n.inNetwork(a).IsValid()
	n.host.mu.Unlock()
	if !direct {
		return nil
	}
	registry.mu.Lock()
	nics := registry.nics[m]
	registry.mu.Unlock()
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
