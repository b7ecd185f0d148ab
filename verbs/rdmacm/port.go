package rdmacm

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// Ports that are drawn for an ID that asks for none (IANA: dynamic ports, as Linux extends them).
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// ports are the port numbers in use, of every device in this process.
var ports = portTable{bound: make(map[portKey][]*binding)}

type portTable struct {
	mu    sync.Mutex
	bound map[portKey][]*binding
}

type portKey struct {
	dev   *verbs.Device
	space PortSpace
	port  uint16
}

// binding is an ID's hold on an address and port, of one device, or with a wildcard of several.
type binding struct {
	devs  []*verbs.Device
	space PortSpace
	addr  netip.AddrPort // the address is unspecified for a wildcard

	// guarded by ports.mu
	reuse, afOnly, listening bool

	drawn bool // the port was
}

// conflicts tells whether two bindings to one port exclude each other.
func (b *binding) conflicts(o *binding) bool {
	if b.reuse && o.reuse && !b.listening && !o.listening {
		return false
	}
	x, y := b.addr.Addr(), o.addr.Addr()
	if x.IsUnspecified() || y.IsUnspecified() {
		bothFamilies := x.IsUnspecified() && !b.afOnly || y.IsUnspecified() && !o.afOnly
		return bothFamilies || x.Is4() == y.Is4()
	}
	return x == y
}

// bind takes b.addr, or draws a port if that has none.
func (t *portTable) bind(op string, b *binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.addr.Port() != 0 {
		if !t.free(b, false) {
			return verbs.Errorf(syscall.EADDRINUSE, op, "%v: the port is in use in port space %v", b.addr, b.space)
		}
		t.insert(b)
		return nil
	}
	return t.draw(op, b)
}

// draw gives b a port that nobody has. t.mu is held.
func (t *portTable) draw(op string, b *binding) error {
	const n = lastEphemeral - firstEphemeral + 1
	start := rand.IntN(n)
	for i := range n {
		b.addr = netip.AddrPortFrom(b.addr.Addr(), uint16(firstEphemeral+(start+i)%n))
		if t.free(b, true) {
			t.insert(b)
			b.drawn = true
			return nil
		}
	}
	b.addr = netip.AddrPortFrom(b.addr.Addr(), 0)
	return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "all ports from %d to %d of port space %v are in use",
		firstEphemeral, lastEphemeral, b.space)
}

// free tells whether nobody's binding conflicts with b, or with wholly, whether the port has no binding at all.
func (t *portTable) free(b *binding, wholly bool) bool {
	for _, d := range b.devs {
		for _, o := range t.bound[portKey{d, b.space, b.addr.Port()}] {
			if o != b && (wholly || b.conflicts(o)) {
				return false
			}
		}
	}
	return true
}

func (t *portTable) insert(b *binding) {
	for _, d := range b.devs {
		k := portKey{d, b.space, b.addr.Port()}
		t.bound[k] = append(t.bound[k], b)
	}
}

// listen makes a binding a listener's: it then shares its port with nobody whom it excludes.
func (t *portTable) listen(op string, b *binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.listening = true
	if !t.free(b, false) {
		b.listening = false
		return verbs.Errorf(syscall.EADDRINUSE, op, "%v: the port is in use in port space %v", b.addr, b.space)
	}
	return nil
}

// unlisten undoes listen.
func (t *portTable) unlisten(b *binding) {
	t.mu.Lock()
	b.listening = false
	t.mu.Unlock()
}

// maxDraws is how many ports are drawn at most where the provider finds one after another in use: by what has ended here,
// but not on the wire, or by what is not rdma_cm's.
const maxDraws = 64

// redraw takes the place of a binding whose port was drawn, with another port, if err says that this one is in use after
// all; else it returns err.
func (t *portTable) redraw(op string, b *binding, err error) (*binding, error) {
	if b == nil || !b.drawn || !errors.Is(err, syscall.EADDRINUSE) {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	other := *b
	if t.draw(op, &other) != nil {
		return nil, err
	}
	t.remove(b)
	return &other, nil
}

// release gives a binding up; b may be nil.
func (t *portTable) release(b *binding) {
	if b == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.remove(b)
}

// remove takes b out of the table. t.mu is held.
func (t *portTable) remove(b *binding) {
	for _, d := range b.devs {
		k := portKey{d, b.space, b.addr.Port()}
		left := slices.DeleteFunc(t.bound[k], func(o *binding) bool { return o == b })
		if len(left) == 0 {
			delete(t.bound, k)
		} else {
			t.bound[k] = left
		}
	}
}
