package rdmatransport

import (
	"net/netip"
	"slices"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// sharedPort returns the interface's datagram port if it is shared with other processes, otherwise
// nil.
func sharedPort(nic stack.NIC) stack.Shared {
	s, _ := nic.Datagrams().(stack.Shared)
	return s
}

// numbersOf returns the numbers that a device on these interfaces may draw: all, unless a port is
// shared. A QP may be used at any port, so several shared ports must have the same numbers.
func numbersOf(nics []stack.NIC) (stack.Numbers, error) {
	n := stack.Numbers{QPNs: stack.Range{Mask: 1<<24 - 1}, CommIDs: stack.Range{Mask: 1<<32 - 1}}
	var first stack.NIC
	for _, nic := range nics {
		s := sharedPort(nic)
		if s == nil {
			continue
		}
		switch leased := s.Numbers(); {
		case first == nil:
			if err := checkRange(nic, "QPNs", leased.QPNs, 24); err != nil {
				return n, err
			}
			if err := checkRange(nic, "communication IDs", leased.CommIDs, 32); err != nil {
				return n, err
			}
			n, first = leased, nic
		case leased != n:
			return n, verbs.Errorf(verbs.ErrInvalid, opOpen,
				"%s and %s share their ports with other processes, and lease different numbers "+
					"(QPNs %#x/%#x and %#x/%#x), while a QP has one number at all ports: open a device for each",
				first.Name(), nic.Name(), n.QPNs.Base, n.QPNs.Mask, leased.QPNs.Base, leased.QPNs.Mask)
		}
	}
	return n, nil
}

// minNumbers is the smallest size of a lease.
const minNumbers = 16

func checkRange(nic stack.NIC, what string, r stack.Range, width int) error {
	if r.Mask&(r.Mask+1) != 0 || r.Base&r.Mask != 0 || uint64(r.Base|r.Mask) >= 1<<width || r.Mask < minNumbers-1 {
		return verbs.Errorf(verbs.ErrInvalid, opOpen,
			"%s leases %s with base %#x and mask %#x: want at least %d numbers of %d bits, and a mask of the form 2^k-1 that "+
				"has no bit of the base", nic.Name(), what, r.Base, r.Mask, minNumbers, width)
	}
	return nil
}

// sharedAt returns the shared ports with an address, or all of them if it is unspecified.
func (p *provider) sharedAt(a netip.Addr) (ports []stack.Shared) {
	for _, nic := range p.nics {
		if s := sharedPort(nic); s != nil && (!a.IsValid() || a.IsUnspecified() || slices.Contains(nic.GIDs(), a)) {
			ports = append(ports, s)
		}
	}
	return ports
}
