package rdmacm

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// The range of ephemeral ports, from which IDs with port 0 get theirs. It is Linux's default range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// ports has the port numbers in use, of all devices of this process.
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

// binding is the binding of an ID to an address and port, of one device, or of several with an
// unspecified address.
type binding struct {
	devs  []*verbs.Device
	space PortSpace
	addr  netip.AddrPort

	// protected by ports.mu
	reuse, afOnly, listening bool

	ephemeral bool // bind has chosen the port

	held []io.Closer // by providers, see PortHolder
}

// conflicts reports whether two bindings to one port exclude each other.
func (b *binding) conflicts(o *binding) bool {
	if listening := b.listening || o.listening; b.reuse && o.reuse && !listening {
		return false
	}
	x, y := b.addr.Addr(), o.addr.Addr()
	if x.IsUnspecified() || y.IsUnspecified() {
		bothFamilies := x.IsUnspecified() && !b.afOnly || y.IsUnspecified() && !o.afOnly
		return bothFamilies || x.Is4() == y.Is4()
	}
	return x == y
}

// bind adds a binding. If the port of b.addr is 0, bind chooses an ephemeral port.
func (t *portTable) bind(op string, b *binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.addr.Port() != 0 {
		if !t.available(b, false) {
			return verbs.Errorf(syscall.EADDRINUSE, op, "%v: the port is in use in port space %v", b.addr, b.space)
		}
		t.insert(b)
		return nil
	}
	return t.bindEphemeral(op, b)
}

// bindAndHold is like bind, and also makes the providers hold the port.
func (t *portTable) bindAndHold(op string, b *binding) error {
	ephemeral := b.addr.Port() == 0
	for try := 1; ; try++ {
		if err := t.bind(op, b); err != nil {
			return err
		}
		err := b.hold()
		if err == nil {
			return nil
		}
		t.release(b)
		if !ephemeral || try == maxPortRetries || !errors.Is(err, syscall.EADDRINUSE) {
			return &verbs.Error{Op: op, Err: err}
		}
		b.addr = netip.AddrPortFrom(b.addr.Addr(), 0)
	}
}

// hold makes the providers hold the port. A port with SetReuseAddr is held only by a listener.
func (b *binding) hold() error {
	if b.reuse {
		return nil
	}
	for _, d := range b.devs {
		h, ok := provider(d).(PortHolder)
		if !ok {
			continue
		}
		addr := b.addr
		if addr.Addr().IsUnspecified() && !b.afOnly {
			addr = netip.AddrPortFrom(netip.Addr{}, addr.Port())
		}
		c, err := h.HoldPort(b.space, addr)
		if err != nil {
			return err
		}
		b.held = append(b.held, c)
	}
	return nil
}

// bindEphemeral chooses a port that has no binding, and adds b with it. t.mu is held.
func (t *portTable) bindEphemeral(op string, b *binding) error {
	const n = lastEphemeral - firstEphemeral + 1
	start := rand.IntN(n)
	for i := range n {
		b.addr = netip.AddrPortFrom(b.addr.Addr(), uint16(firstEphemeral+(start+i)%n))
		if t.available(b, true) {
			t.insert(b)
			b.ephemeral = true
			return nil
		}
	}
	b.addr = netip.AddrPortFrom(b.addr.Addr(), 0)
	return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "all ports from %d to %d of port space %v are in use",
		firstEphemeral, lastEphemeral, b.space)
}

// available reports whether no other binding conflicts with b. With exclusively, it reports whether
// the port has no other binding at all.
func (t *portTable) available(b *binding, exclusively bool) bool {
	for _, d := range b.devs {
		for _, o := range t.bound[portKey{d, b.space, b.addr.Port()}] {
			if o != b && (exclusively || b.conflicts(o)) {
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

// listen makes a binding that of a listener. It fails if the binding then conflicts with another
// one.
func (t *portTable) listen(op string, b *binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.listening = true
	if !t.available(b, false) {
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

// maxPortRetries bounds the ephemeral ports that are tried when the provider finds each in use. A
// connection in TIME-WAIT may use it, or a program without rdma_cm.
const maxPortRetries = 64

// replace returns a binding like b with another ephemeral port, and removes b. It does so if b has
// an ephemeral port and err says that the port is in use. Otherwise it returns err.
func (t *portTable) replace(op string, b *binding, err error) (*binding, error) {
	if b == nil || !b.ephemeral || !errors.Is(err, syscall.EADDRINUSE) {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	other := *b
	other.held = nil // listening on it holds it
	if t.bindEphemeral(op, &other) != nil {
		return nil, err
	}
	t.remove(b)
	b.unhold()
	return &other, nil
}

// release removes a binding; b may be nil.
func (t *portTable) release(b *binding) {
	if b == nil {
		return
	}
	t.mu.Lock()
	t.remove(b)
	t.mu.Unlock()
	b.unhold()
}

// unhold undoes hold.
func (b *binding) unhold() {
	for _, c := range b.held {
		_ = c.Close()
	}
	b.held = nil
}

// remove removes b from the table. t.mu is held.
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
