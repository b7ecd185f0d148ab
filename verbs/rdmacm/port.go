package rdmacm

import (
	"errors"
	"io"
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

// at returns the address and port of a binding as providers take it: the zero Addr means all
// addresses of both families.
func (b *binding) at() netip.AddrPort {
	if b.addr.Addr().IsUnspecified() && !b.afOnly {
		return netip.AddrPortFrom(netip.Addr{}, b.addr.Port())
	}
	return b.addr
}

// conflict returns why two bindings to one port exclude each other, or nil. The rules are those of
// Linux, also where they exclude addresses of two families: an address of IPv6 is not limited to
// its family.
func (b *binding) conflict(o *binding) error {
	if listening := b.listening || o.listening; b.reuse && o.reuse && !listening {
		return nil
	}
	x, y := b.addr.Addr(), o.addr.Addr()
	switch {
	case b.afOnly && o.afOnly && x.Is4() != y.Is4():
		return nil
	case x.IsUnspecified() || y.IsUnspecified():
		return syscall.EADDRNOTAVAIL
	case x == y:
		return syscall.EADDRINUSE
	}
	return nil
}

// bind adds a binding. If the port of b.addr is 0, bind chooses an ephemeral port.
func (t *portTable) bind(op string, b *binding) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.addr.Port() != 0 {
		if err := t.check(op, b); err != nil {
			return err
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
		if !ephemeral || try == maxPortRetries || !inUse(err) {
			return &verbs.Error{Op: op, Err: err}
		}
		b.addr = netip.AddrPortFrom(b.addr.Addr(), 0)
	}
}

// inUse reports whether a port is in use, where another one may be free. Linux says EADDRNOTAVAIL
// for a port that is in use at another address, if one of the two is unspecified, and for a
// connection whose port has a recent one to the same peer.
func inUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
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
		c, err := h.HoldPort(b.space, b.at(), b.afOnly)
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
	start := int(b.devs[0].Clock().Uint32() % n)
	for i := range n {
		b.addr = netip.AddrPortFrom(b.addr.Addr(), uint16(firstEphemeral+(start+i)%n))
		if !t.bindsAny(b) {
			t.insert(b)
			b.ephemeral = true
			return nil
		}
	}
	b.addr = netip.AddrPortFrom(b.addr.Addr(), 0)
	return verbs.Errorf(syscall.EADDRNOTAVAIL, op, "all ports from %d to %d of port space %v are in use",
		firstEphemeral, lastEphemeral, b.space)
}

// bindsAny reports whether the port has another binding than b.
func (t *portTable) bindsAny(b *binding) bool {
	for _, d := range b.devs {
		if slices.ContainsFunc(t.bound[portKey{d, b.space, b.addr.Port()}], func(o *binding) bool { return o != b }) {
			return true
		}
	}
	return false
}

// check returns an error if another binding conflicts with b.
func (t *portTable) check(op string, b *binding) error {
	for _, d := range b.devs {
		for _, o := range t.bound[portKey{d, b.space, b.addr.Port()}] {
			if o == b {
				continue
			}
			if err := b.conflict(o); err != nil {
				return verbs.Errorf(err, op, "%v: the port is in use at %v in port space %v", b.addr, o.addr.Addr(), b.space)
			}
		}
	}
	return nil
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
	err := t.check(op, b)
	if err != nil {
		b.listening = false
	}
	return err
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
	if b == nil || !b.ephemeral || !inUse(err) {
		return nil, err
	}
	t.mu.Lock()
	other := *b
	other.held = nil // listening on it holds it
	if t.bindEphemeral(op, &other) != nil {
		t.mu.Unlock()
		return nil, err
	}
	t.remove(b)
	t.mu.Unlock()
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

// share lets other IDs with SetReuseAddr have the port, too.
func (t *portTable) share(b *binding) {
	t.mu.Lock()
	b.reuse = true
	t.mu.Unlock()
	b.unhold()
}

// unhold undoes hold. A provider may ask another process to, so ports.mu must not be held.
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
