package stack_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/stack"
)

// TestServiceConflicts: two processes cannot have services that Linux would not give to two IDs of
// rdma_cm.
func TestServiceConflicts(t *testing.T) {
	one4, one6, other6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	all4, all6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for _, c := range []struct {
		x, y  netip.Addr
		both  bool // of x
		wants error
	}{
		{one6, all4, true, syscall.EADDRNOTAVAIL}, // rdma_bind_addr to an IPv6 address
		{one6, all4, false, nil},                  // RDMA_OPTION_ID_AFONLY
		{one4, all6, true, syscall.EADDRNOTAVAIL},
		{one4, all6, false, nil},
		{one6, all6, false, syscall.EADDRNOTAVAIL},
		{one4, all4, true, syscall.EADDRNOTAVAIL},
		{one6, netip.Addr{}, false, syscall.EADDRNOTAVAIL},
		{one6, one6, true, syscall.EADDRINUSE},
		{one6, other6, true, nil},
		{one6, one4, true, nil},
		{all4, all6, false, nil},
	} {
		x := stack.Service{Addr: c.x, ID: 7, Mask: ^uint64(0), BothFamilies: c.both}
		y := stack.Service{Addr: c.y, ID: 7, Mask: ^uint64(0)}
		for _, err := range []error{x.Conflict(y), y.Conflict(x)} {
			if !errors.Is(err, c.wants) {
				t.Errorf("%+v and %+v: %v, want %v", x, y, err, c.wants)
			}
		}
		y.ID = 8
		if err := x.Conflict(y); err != nil {
			t.Errorf("two services: %v", err)
		}
	}
}
