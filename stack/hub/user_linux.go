package hub

// Users of a hub of the machine.
//
// Each user has a share, so that none can exclude the others: of connections and QP numbers at most
// half of what the others leave, and limited numbers of services, addresses and sockets. A
// user's clients join, leave and are served one after the other, so that at most one of them
// competes with each other user's.

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// Limits for a user of a hub of the machine.
const (
	maxUserAddrs    = 64   // addresses at which the user's clients receive
	maxUserServices = 4096 // including ended ones
	maxUserSockets  = 2048 // that the user's clients send from
)

// user is a user who has connections to the hub.
type user struct {
	uid   uint32
	conns int        // guarded by server.mu
	turn  sync.Mutex // held while a client joins or leaves, and during a request, in a hub of the machine
}

// origin is where a connection comes from. The process is 0 if it is not visible from here.
type origin struct {
	user uint32
	pid  int32
}

// enter counts a connection of a user. It returns nil if the user has too many. mu is held.
func (s *server) enter(uid uint32) *user {
	u := s.users[uid]
	if u == nil {
		u = &user{uid: uid}
	}
	if others := len(s.conns) - u.conns; s.cfg.System && u.conns+1 > (maxConns-others)/2 {
		return nil
	}
	u.conns++
	s.users[uid] = u
	return u
}

// leave undoes enter. mu is held.
func (s *server) leave(u *user) {
	if u.conns--; u.conns == 0 {
		delete(s.users, u.uid)
	}
}

// refused counts an error that says that a client, its user, or all have as much as they may.
func (s *server) refused(err error) {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EAGAIN) {
		s.cfg.Counters.Refused.Add(1)
	}
}

// inTurn calls f for a client when it is the user's turn.
func (s *server) inTurn(m *member, f func() error) error {
	if s.cfg.System {
		m.user.turn.Lock()
		defer m.user.turn.Unlock()
	}
	return f()
}

// mayReceive checks that a client of a user may receive at one more address. mu is held.
func (s *server) mayReceive(m *member, a netip.Addr) error {
	if !s.cfg.System {
		return nil
	}
	have := map[netip.Addr]bool{}
	for o := range s.members {
		if o.user == m.user {
			for b := range o.addrs {
				have[b] = true
			}
		}
	}
	if !have[a] && len(have) >= maxUserAddrs {
		return fmt.Errorf("user %d has %d addresses already: %w", m.user.uid, len(have), unix.ENOSPC)
	}
	return nil
}

// mayServe checks that a client of a user may register one more service. mu is held.
func (r *relay) mayServe(m *member, s stack.Service) error {
	if !r.system {
		return nil
	}
	if s.Mask != ^uint64(0) {
		return fmt.Errorf("service %#x with mask %#x: a user may not have all of these: %w", s.ID, s.Mask, unix.EPERM)
	}
	n := 0
	for i := range r.services {
		if r.services[i].member.user == m.user {
			n++
		}
	}
	if n >= maxUserServices {
		return fmt.Errorf("user %d has %d services already: %w", m.user.uid, n, unix.ENOSPC)
	}
	return nil
}

// keepSender keeps a descriptor of a client's socket in a hub of the machine. As long as the hub
// takes datagrams from its address and port for that client's, no other process can bind them. It
// returns an error if they are another client's. mu is held.
func (r *relay) keepSender(m *member, from netip.AddrPort, fd int) error {
	if !r.system {
		return nil
	}
	n := 0
	for _, o := range r.senders {
		if o != nil && o.user == m.user {
			n++
		}
	}
	o, known := r.senders[from]
	switch {
	case known && (o == nil || o != m && !o.gone):
		return fmt.Errorf("the socket %v is not this client's: %w", from, unix.EADDRINUSE)
	case n >= maxUserSockets:
		return fmt.Errorf("user %d has %d sockets to send from already: %w", m.user.uid, n, unix.ENOSPC)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r.endSender(from)
	r.kept[from] = own
	return nil
}

// endSender closes the descriptor of keepSender, if there is one. mu is held.
func (r *relay) endSender(from netip.AddrPort) {
	if fd, ok := r.kept[from]; ok {
		_ = unix.Close(fd)
		delete(r.kept, from)
	}
}
