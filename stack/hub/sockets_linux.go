package hub

// The sockets at the hub's addresses.
//
// The hub opens all sockets, its own and one for each client that takes it, and passes clients
// theirs. It keeps a descriptor of each, so that the kernel's list of the sockets stays in order
// (see rxsocket.Steered). The socket of a client that is gone is used for the next client. The
// kernel steers datagrams to a client's socket once the client has confirmed that it uses it, and
// until the client is gone.
//
// A client closes its sockets when the hub is gone. Its successor opens others. A client that is
// stopped at that time keeps its sockets open; until they are closed, the successor relays all
// datagrams of these addresses.

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// lookInterval is how often the hub checks whether the sockets of its predecessor's clients are
// closed.
const lookInterval = 100 * time.Millisecond

// maxClientSockets is the number of sockets that the hub opens for clients at all addresses.
const maxClientSockets = 1024

// listening is the sockets at an address.
type listening struct {
	*rxsocket.Socket                   // the hub's
	steered          *rxsocket.Steered // the same; nil if the kernel cannot steer
	users            int
	opened           []*os.File       // clients' sockets, in the order of their indices, which begin with 1
	unused           []uint16         // indices of sockets without a client
	mixed            []netip.AddrPort // flows that the hub relays
	relays           bool             // the hub relays all
	shares           shares           // of users
	drain            atomic.Pointer[[]*share]
}

// memberSocket is a client's socket at an address.
type memberSocket struct {
	index uint16 // 0: it has none yet
	used  bool   // the client has confirmed it
}

// listen opens the socket of an address, unless it is open, and counts its users. mu is held, or
// the hub has not started yet.
func (s *server) listen(a netip.Addr, zone string) (err error) {
	in := s.sockets[a]
	if in == nil {
		if in, err = s.openSocket(a, zone); err != nil {
			return err
		}
		s.sockets[a] = in
		s.relay.setOwn(a, true)
		s.steerAll()
		s.work.Go(func() { in.RunDirectWait(&s.direct) })
		s.cfg.Log.Debug("an address is served", "addr", a)
	}
	in.users++
	return nil
}

// openSocket opens the hub's own socket at an address.
func (s *server) openSocket(a netip.Addr, zone string) (in *listening, err error) {
	in = &listening{}
	arrivals := &arrivals{relay: s.relay, dst: a}
	if s.cfg.System {
		arrivals.shares = &in.drain
	}
	if !s.cfg.Relay || s.cfg.System {
		if in.steered, err = rxsocket.OpenSteered(a, zone, arrivals); err == nil {
			in.Socket = in.steered.Socket
			if !in.steered.Alone() {
				s.cfg.Log.Info("clients of an earlier hub still have sockets: the hub relays all datagrams", "addr", a)
			}
			return in, nil
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		s.cannotSteer.Do(func() { s.cfg.Log.Warn("the kernel cannot steer datagrams: the hub relays all", "error", err) })
		arrivals.shares = nil
	}
	in.Socket, err = rxsocket.Open(a, zone, arrivals)
	return in, err
}

// Close closes the sockets.
func (in *listening) Close() {
	if in.steered != nil {
		in.steered.Close()
	} else {
		in.Socket.Close()
	}
	for _, h := range in.shares.of {
		h.Close()
	}
	for _, h := range in.shares.unused {
		h.Close()
	}
	for _, f := range in.opened {
		_ = f.Close()
	}
}

// release closes the sockets of an address after its last user. mu is held.
func (s *server) release(a netip.Addr) {
	in := s.sockets[a]
	if in == nil {
		return
	}
	if in.users--; in.users == 0 {
		delete(s.sockets, a)
		s.relay.setOwn(a, false)
		in.Close()
		s.steerAll()
	}
}

// lookAgain offers clients sockets once those of an earlier hub's clients are closed. It returns
// false if they are not closed yet.
func (s *server) lookAgain() (steady bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	steady = true
	for a, in := range s.sockets {
		if in.steered == nil || in.steered.Alone() {
			continue
		}
		in.steered.Look()
		if !in.steered.Alone() {
			steady = false
			continue
		}
		s.cfg.Log.Info("the kernel steers datagrams", "addr", a)
		for m := range s.members {
			s.offerSocket(m, a)
		}
	}
	return steady
}

// offerSocket passes a client a socket at an address if it takes one and has none. Without one, the
// hub relays its datagrams. mu is held.
func (s *server) offerSocket(m *member, a netip.Addr) {
	in, to := s.sockets[a], m.sockets[a]
	if to == nil || to.index != 0 || in.steered == nil || !in.steered.Alone() {
		return
	}
	if len(in.unused) == 0 {
		if err := s.addSocket(in); err != nil {
			s.cfg.Log.Debug("the hub relays datagrams to a client", "addr", a, "pid", m.pid, "error", err)
			return
		}
	}
	last := len(in.unused) - 1
	index := in.unused[last]
	f := in.opened[index-1]
	rxsocket.Discard(f)
	if err := m.tell((&socketMessage{a}).encode(), int(f.Fd())); err != nil {
		s.cfg.Log.Debug("the hub relays datagrams to a client", "addr", a, "pid", m.pid, "error", err)
		return
	}
	in.unused = in.unused[:last]
	to.index = index
}

// addSocket opens one more socket for clients. mu is held.
func (s *server) addSocket(in *listening) error {
	f, index, err := s.newSocket(in)
	if err != nil {
		return err
	}
	in.opened = append(in.opened, f)
	in.unused = append(in.unused, index)
	return nil
}

// newSocket opens one more socket at an address, for clients or a user. mu is held.
func (s *server) newSocket(in *listening) (*os.File, uint16, error) {
	n := 0
	for _, o := range s.sockets {
		n += len(o.opened)
	}
	if n >= maxClientSockets {
		return nil, 0, fmt.Errorf("there are %d sockets for clients already: %w", n, unix.ENOSPC)
	}
	return in.steered.Add()
}

// useSocket steers datagrams to a client's socket.
func (s *server) useSocket(m *member, a netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, to := s.sockets[a], m.sockets[a]
	if in == nil || to == nil || to.index == 0 {
		return fmt.Errorf("the client has no socket at %v: %w", a, unix.ENOENT)
	}
	to.used = true
	return s.steer(a, in)
}

// takeBack ends a client's use of its socket at an address. mu is held.
func (s *server) takeBack(m *member, a netip.Addr) {
	in, had := s.sockets[a], m.sockets[a]
	delete(m.sockets, a)
	if in == nil || had == nil || had.index == 0 {
		return
	}
	if had.used {
		_ = s.steer(a, in)
	}
	in.unused = append(in.unused, had.index)
}

// addMixedFlow makes the hub relay the datagrams of a peer's port to an address.
func (s *server) addMixedFlow(m *member, own netip.Addr, from netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, to := s.sockets[own], m.sockets[own]
	if in == nil || to == nil || !to.used || from.Port() == 0 || from.Addr().Is4() != own.Is4() {
		return fmt.Errorf("no datagrams from %v arrive at a socket of the client's: %w", from, unix.EINVAL)
	}
	if slices.Contains(in.mixed, from) {
		return nil
	}
	in.mixed = append(in.mixed, from)
	in.relays = len(in.mixed) > rxsocket.MaxFlows
	return s.steer(own, in)
}

// steerAll steers at all addresses, after one was added or removed. mu is held.
func (s *server) steerAll() {
	for a, in := range s.sockets {
		_ = s.steer(a, in)
	}
}

// steer tells the kernel which client's socket receives what at an address. If it refuses, the hub
// relays all. mu is held.
func (s *server) steer(a netip.Addr, in *listening) error {
	if s.cfg.System || in.steered == nil || !in.steered.Alone() || len(in.opened) == 0 {
		return nil
	}
	t := rxsocket.Table{Flows: in.mixed}
	for o := range s.sockets {
		if o.Is4() == a.Is4() {
			t.Sources = append(t.Sources, o)
		}
	}
	if in.relays || len(t.Sources) > rxsocket.MaxSources {
		return in.steered.Steer(nil)
	}
	for m := range s.members {
		if to := m.sockets[a]; to != nil && to.used {
			for i := range uint32(1) << m.lease.bits {
				t.ByQPN[m.lease.qpnSlot+i] = to.index
			}
		}
	}
	err := in.steered.Steer(&t)
	if err != nil {
		s.cfg.Log.Warn("the kernel refuses to steer datagrams: the hub relays all", "addr", a, "error", err)
		in.relays = true
		return errors.Join(err, in.steered.Steer(nil))
	}
	return nil
}
