package hub

// Rings that the hub arranges between its clients. The hub keeps a descriptor of one end of each
// connection. It can therefore end the pair when one client has left, even if others have
// descriptors of the connection.

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// pairKey identifies two clients by the first slots of their QPNs, the smaller first.
type pairKey [2]uint32

func keyOf(a, b uint32) pairKey { return pairKey{min(a, b), max(a, b)} }

func (k pairKey) has(slot uint32) bool { return k[0] == slot || k[1] == slot }

// pairing is a pair of clients with rings between them.
type pairing struct {
	serial uint32
	fd     int           // one end of their connection
	ends   map[ends]bool // address pairs that the clients were told, from the first client's view
}

// pair arranges rings between a client and the one that has a QPN, for datagrams between two
// addresses.
func (s *server) pair(m *member, own, theirs netip.Addr, qpn uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return unix.ECANCELED
	case !m.addrs[own]:
		return fmt.Errorf("%v is not one of the client's addresses: %w", own, unix.EADDRNOTAVAIL)
	case s.sockets[theirs] == nil:
		return fmt.Errorf("%v is not one of the hub's addresses: %w", theirs, unix.EHOSTUNREACH)
	}
	o := s.relay.owner(qpn, theirs)
	if o == nil || o == m || o.user != m.user {
		return fmt.Errorf("QPN %#x at %v belongs to no other client: %w", qpn, theirs, unix.ENOENT)
	}
	key := keyOf(m.lease.qpnSlot, o.lease.qpnSlot)
	memberEnds := ends{theirs, own}
	keyEnds := memberEnds
	if key[0] != m.lease.qpnSlot {
		keyEnds = memberEnds.swapped()
	}
	p := s.pairings[key]
	switch {
	case p != nil && p.ends[keyEnds]:
		return nil
	case p != nil && len(p.ends) >= maxEnds:
		return fmt.Errorf("two clients have at most %d pairs of addresses: %w", maxEnds, unix.ENOSPC)
	case p == nil && (s.pairsOf(m.lease.qpnSlot) >= maxPairs || s.pairsOf(o.lease.qpnSlot) >= maxPairs):
		return fmt.Errorf("a client has rings with at most %d others: %w", maxPairs, unix.ENOSPC)
	}
	var fds [2][]int // for m and for o
	if p == nil {
		both, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(both[1])
		s.serial++
		p = &pairing{s.serial, both[0], map[ends]bool{}}
		s.pairings[key] = p
		fds = [2][]int{both[:1], both[1:]}
	}
	toM, toO := pairMessage{p.serial, o.numbers.QPNs, memberEnds}, pairMessage{p.serial, m.numbers.QPNs, memberEnds.swapped()}
	err := o.tell(toO.encode(), fds[1]...)
	if err == nil {
		err = m.tell(toM.encode(), fds[0]...)
	}
	if err != nil {
		s.endPair(key, p)
		return err
	}
	p.ends[keyEnds] = true
	return nil
}

// pairsOf returns the number of clients to which a client has rings. mu is held.
func (s *server) pairsOf(slot uint32) (n int) {
	for key := range s.pairings {
		if key.has(slot) {
			n++
		}
	}
	return n
}

// endPair ends a pair. mu is held.
func (s *server) endPair(key pairKey, p *pairing) {
	delete(s.pairings, key)
	_ = unix.Shutdown(p.fd, unix.SHUT_RDWR) // affects both ends
	_ = unix.Close(p.fd)
}

// endPairs ends all pairs of the present or former client with a slot. mu is held.
func (s *server) endPairs(slot uint32) {
	for key, p := range s.pairings {
		if key.has(slot) {
			s.endPair(key, p)
		}
	}
}

// unpair ends a client's pair with this serial number, if there is one.
func (s *server) unpair(m *member, serial uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, p := range s.pairings {
		if p.serial == serial && key.has(m.lease.qpnSlot) {
			s.endPair(key, p)
		}
	}
}

// keepPair restores a pair that an earlier hub has arranged. fd is one end of its connection.
func (s *server) keepPair(m *member, qpn, serial uint32, fd int) error {
	if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_UNIX {
		return fmt.Errorf("the descriptor is not a unix socket: %w", unix.EINVAL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.leases.of(qpn)
	if o == nil || o == m.lease || o.user != m.user.uid || s.closed {
		return fmt.Errorf("no other client has QPN %#x: %w", qpn, unix.ENOENT)
	}
	key := keyOf(m.lease.qpnSlot, o.qpnSlot)
	switch p := s.pairings[key]; {
	case p != nil && p.serial == serial:
		return nil // the other client has already done this
	case p != nil:
		return fmt.Errorf("there are newer rings with that client: %w", unix.EEXIST)
	case s.pairsOf(m.lease.qpnSlot) >= maxPairs || s.pairsOf(o.qpnSlot) >= maxPairs:
		return fmt.Errorf("a client has rings with at most %d others: %w", maxPairs, unix.ENOSPC)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.pairings[key] = &pairing{serial, own, map[ends]bool{}}
	return nil
}

// owner returns the client that has a QPN and an address.
func (r *relay) owner(qpn uint32, at netip.Addr) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.find(Target{Kind: TargetQPN, Number: qpn}, at)
}
