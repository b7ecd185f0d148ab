package stack

import (
	"net/netip"
	"syscall"
)

// Shared is a [DatagramPort] whose addresses are shared with other processes. A hub owns UDP port
// 4791. It forwards each datagram to its destination process, which it finds by the numbers in the
// datagram's BTH and MAD (IBTA Vol 1 §9.2, §12.6). A transport on such a port takes its numbers
// from Numbers, and registers its services with Serve.
type Shared interface {
	// Numbers returns the numbers leased to this process until the port is closed. They never
	// change.
	Numbers() Numbers
	// Serve registers the process for connection requests (REQ, SIDR_REQ) to a service. The
	// error wraps EADDRINUSE if another process has registered an overlapping service at the same
	// address, and EADDRNOTAVAIL if one of the two is at all addresses, as for ports in Linux. The
	// process's own registrations may overlap.
	//
	// Serve waits for the hub. It may be called while one hub replaces another. In that case the
	// new hub decides. A process's services stay registered with the new hub.
	Serve(Service) error
	// EndServe reverts one Serve of the same value. Requests still come to this process until
	// another process serves them. This process knows which requests are retransmissions, and
	// refuses the others. No other process can do that.
	EndServe(Service)
}

// Service is a set of services at an address: those whose ID, masked by Mask, equals ID, masked by
// Mask. The zero Addr means all addresses of the port, 0.0.0.0 those of IPv4, and :: those of IPv6.
type Service struct {
	Addr     netip.Addr
	ID, Mask uint64
	// BothFamilies makes a service at an address overlap those at all addresses of the other family,
	// as Linux has it for ports of IPv6 without IPV6_V6ONLY.
	BothFamilies bool
}

// Overlaps reports whether two services share an ID at an address.
func (s Service) Overlaps(o Service) bool {
	if (s.ID^o.ID)&s.Mask&o.Mask != 0 {
		return false
	}
	if !s.Addr.IsValid() || !o.Addr.IsValid() || s.Addr == o.Addr {
		return true
	}
	return (s.Addr.Is4() == o.Addr.Is4() || s.BothFamilies || o.BothFamilies) && (s.Addr.IsUnspecified() || o.Addr.IsUnspecified())
}

// Conflict returns why two processes cannot have two services that overlap, as Linux answers for
// ports: EADDRINUSE for one address, EADDRNOTAVAIL if one of the services is at all addresses.
func (s Service) Conflict(o Service) error {
	switch {
	case !s.Overlaps(o):
		return nil
	case s.Addr.IsValid() && s.Addr == o.Addr && !s.Addr.IsUnspecified():
		return syscall.EADDRINUSE
	}
	return syscall.EADDRNOTAVAIL
}

// Numbers are leased to a process by a hub.
type Numbers struct {
	QPNs    Range // 24 bits
	CommIDs Range // 32 bits: local communication IDs and SIDR request IDs
}

// Range is the set of numbers n with n &^ Mask == Base. Mask has the form 2^k-1. The zero Range
// contains only 0. The number 0 is never leased, so the zero Range can stand for no numbers.
type Range struct{ Base, Mask uint32 }

// Contains reports whether n is in the range.
func (r Range) Contains(n uint32) bool { return n&^r.Mask == r.Base }
